package volume

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// maxErrorText limits the text of a refusal, which must fit into a gRPC status.
const maxErrorText = 64 << 10

func FuzzParse(f *testing.F) {
	add := func(a map[string]string, other string) {
		f.Add(a["sources"], a["configMap"], a["secret"], a["namespace"], a["optional"], a["items"], a["defaultMode"], other)
	}
	for _, c := range slices.Concat(acceptedCases(), envCases(), expandCases()) {
		add(c.attributes, "")
	}
	for _, c := range refusedCases() {
		add(c.attributes, "")
	}
	add(nil, "colour")
	add(nil, "uid")
	add(nil, "volume")
	add(nil, "a\nb\x1b[31m")
	f.Fuzz(func(t *testing.T, sources, configMap, secret, namespace, optional, items, defaultMode, other string) {
		attributes := map[string]string{
			"sources": sources, "configMap": configMap, "secret": secret, "namespace": namespace,
			"optional": optional, "items": items, "defaultMode": defaultMode,
		}
		maps.DeleteFunc(attributes, func(_, value string) bool { return value == "" })
		if other != "" {
			attributes[other] = "x"
		}
		checkParse(t, attributes)
	})
}

// FuzzParseSources only varies the one attribute that has a syntax.
func FuzzParseSources(f *testing.F) {
	for _, c := range slices.Concat(acceptedCases(), envCases(), expandCases()) {
		f.Add(c.attributes["sources"])
	}
	for _, c := range slices.Concat(refusedSourcesCases(), refusedEnvCases(), refusedExpandCases()) {
		if len(c.sources) < 1000 {
			f.Add(c.sources)
		}
	}
	f.Fuzz(func(t *testing.T, sources string) {
		checkParse(t, map[string]string{"sources": sources})
		// No alias is expanded. A control character grows most, to six bytes.
		if document, err := toJSON(sources); len(document) > 16+6*len(sources) {
			t.Errorf("%q became %d bytes of JSON, %v", sources, len(document), err)
		}
	})
}

// checkParse checks the properties of Parse with any attributes.
func checkParse(t *testing.T, attributes map[string]string) {
	t.Helper()
	before := maps.Clone(attributes)
	spec, err := Parse(attributes, testPod())
	if !maps.Equal(attributes, before) {
		t.Errorf("Parse changed its argument from %q to %q", before, attributes)
	}
	if err != nil {
		checkErrorText(t, err)
		return
	}
	checkSpec(t, spec)
}

// checkErrorText checks that a refusal can be shown to people as it is.
func checkErrorText(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if len(text) == 0 || len(text) >= maxErrorText {
		t.Errorf("the error has %d bytes: %.200s", len(text), text)
	}
	if !utf8.ValidString(text) {
		t.Errorf("the error is not valid UTF-8: %q", text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("the error has an unprintable character at byte %d: %q", i, text)
	}
}

// checkSpec checks the properties of every spec that Parse returns.
func checkSpec(t *testing.T, spec *Spec) {
	t.Helper()
	if len(spec.Sources) == 0 {
		t.Error("no source")
	}
	if spec.DefaultMode != nil && *spec.DefaultMode&^0o777 != 0 {
		t.Errorf("default mode %o", uint32(*spec.DefaultMode))
	}
	explicit, shown := map[string]bool{}, map[string]bool{}
	file := func(p string, mode *fs.FileMode) {
		if clean, err := CleanPath(p); err != nil || clean != p {
			t.Errorf("CleanPath(%q) = %q, %v; want it unchanged", p, clean, err)
		}
		if explicit[p] {
			t.Errorf("path %q is there twice", p)
		}
		explicit[p] = true
		if mode != nil && *mode&^0o777 != 0 {
			t.Errorf("mode %o of path %q", uint32(*mode), p)
		}
	}
	for _, s := range spec.Sources {
		if s.Field == "" {
			t.Errorf("source %+v has no field", s)
		}
		isFile := s.Env != nil || s.PodEnv != nil || s.Join != nil || s.Expand != nil || s.Versions
		if isFile {
			file(s.Path, s.Mode)
		}
		if s.Projection != nil {
			for _, item := range s.Projection.Items {
				file(item.Path, item.Mode)
				if item.Key == "" {
					t.Errorf("path %q has no key", item.Path)
				}
			}
		}
		if s.Env != nil {
			checkEnv(t, &s)
		}
		if s.PodEnv != nil && (s.PodEnv.Container == "" || !isFormat(s.Format)) {
			t.Errorf("podEnv %+v", *s.PodEnv)
		}
		if s.Join != nil && len(s.Join) == 0 {
			t.Error("a joined file of nothing")
		}
		if s.Expand != nil {
			checkExpand(t, &s)
		}
		if s.Below.Path != "" {
			if clean, err := CleanPath(s.Below.Path); err != nil || clean != s.Below.Path || s.Below.Field == "" || s.Projection == nil && s.Volume == "" {
				t.Errorf("directory %+v of %+v: %v", s.Below, s, err)
			}
		}
		if s.Volume != "" && shown[s.Volume] {
			t.Errorf("volume %q is shown twice", s.Volume)
		}
		shown[s.Volume] = true
		things := 0
		for _, is := range []bool{s.Projection != nil, s.Env != nil, s.PodEnv != nil, s.Join != nil, s.Expand != nil, s.Versions, s.Volume != ""} {
			if is {
				things++
			}
		}
		if things != 1 {
			t.Errorf("source %+v is not just one thing", s)
		}
	}
	for _, use := range slices.Concat(spec.objects(), spec.LocalRefs(testPod()), spec.CrossNamespaceRefs(testPod())) {
		if use.Ref.Name == "" || use.Ref.Namespace != testPod().Namespace || use.Field == "" {
			t.Errorf("incomplete use %+v", use)
		}
	}
	for p := range explicit {
		for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
			if explicit[dir] {
				t.Errorf("%q lies below the file %q", p, dir)
			}
		}
	}
}

func isFormat(f EnvFormat) bool { return f == EnvDotenv || f == EnvShell || f == EnvEnviron }

// checkEnv checks the properties of every env source that Parse returns.
func checkEnv(t *testing.T, file *Source) {
	t.Helper()
	if !isFormat(file.Format) {
		t.Errorf("format %q", file.Format)
	}
	for _, from := range file.Env.From {
		if from.Ref.Kind != ConfigMap && from.Ref.Kind != Secret {
			t.Errorf("envFrom of nothing: %+v", from)
		}
	}
	for _, v := range file.Env.Vars {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00\n") {
			t.Errorf("variable %q", v.Name)
		}
		if v.Key != nil && (v.FieldRef != "" || v.Key.Key == "") {
			t.Errorf("variable %q comes from %+v and %q", v.Name, *v.Key, v.FieldRef)
		}
	}
}

func FuzzCleanPath(f *testing.F) {
	for _, c := range pathCases() {
		f.Add(c.path)
	}
	f.Fuzz(func(t *testing.T, p string) {
		clean, err := CleanPath(p)
		if err != nil {
			if clean != "" {
				t.Errorf("CleanPath(%q) = %q beside the error %v", p, clean, err)
			}
			checkErrorText(t, err)
			return
		}
		if again, err := CleanPath(clean); err != nil || again != clean {
			t.Errorf("CleanPath(%q) = %q, and of that %q, %v", p, clean, again, err)
		}
		if clean == "" || len(clean) > 4096 || strings.HasPrefix(clean, "..") || strings.ContainsRune(clean, 0) {
			t.Errorf("CleanPath(%q) = %q", p, clean)
		}
		for element := range strings.SplitSeq(clean, "/") {
			if element == "" || element == "." || element == ".." || len(element) > 255 {
				t.Errorf("CleanPath(%q) = %q, with the element %q", p, clean, element)
			}
		}
	})
}
