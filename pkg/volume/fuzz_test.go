package volume

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
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
	for _, c := range slices.Concat(refusedSourcesCases(), refusedEnvCases(), refusedExpandCases()) {
		if len(c.sources) < 1000 {
			add(listing(c.sources), "")
		}
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
		// No alias is expanded. A control character grows most, to six bytes.
		if document, err := toJSON(sources); len(document) > 16+6*len(sources) {
			t.Errorf("%q became %d bytes of JSON, %v", sources, len(document), err)
		}
	})
}

func checkParse(t *testing.T, attributes map[string]string) {
	t.Helper()
	before := maps.Clone(attributes)
	spec, err := Parse(attributes, testPod())
	expect.Equal(t, "the argument", attributes, before)
	if err != nil {
		checkErrorText(t, err)
		return
	}
	checkSpec(t, spec)
}

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
		if s.Env != nil || s.PodEnv != nil || s.Join != nil || s.Expand != nil || s.Versions {
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
		for _, use := range s.References() {
			if use.Ref.Name == "" || use.Field == "" {
				t.Errorf("incomplete reference %+v of %+v", use, s)
			}
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

func FuzzCleanPath(f *testing.F) {
	for _, c := range pathCases() {
		f.Add(c.path)
	}
	f.Fuzz(func(t *testing.T, p string) {
		clean, err := CleanPath(p)
		if err != nil {
			expect.Equal(t, fmt.Sprintf("%q beside the error %v", p, err), clean, "")
			checkErrorText(t, err)
			return
		}
		expect.Equal(t, fmt.Sprintf("the clean path of %q, cleaned again", p), must.Get(CleanPath(clean))(t), clean)
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

type expensive struct {
	name, sources string
	// ok means that the sources are valid, only many.
	ok bool
}

// expensiveCases returns attributes of nearly the largest size that try to cost much more than their size.
func expensiveCases() []expensive {
	fill := func(head, repeat, tail string) string {
		return head + strings.Repeat(repeat, (MaxAttributesSize-200-len(head)-len(tail))/len(repeat)) + tail
	}
	// Every path is below all earlier ones.
	var ladder strings.Builder
	for i := 1; ladder.Len() < MaxAttributesSize-2000; i++ {
		fmt.Fprintf(&ladder, "{key: k, path: %sa},", strings.Repeat("a/", i))
	}
	// Paths of the largest length with as many directories as possible.
	var deep strings.Builder
	for i := range 15 {
		fmt.Fprintf(&deep, "{key: k, path: %d%s},", i, strings.Repeat("/a", 2046))
	}
	bomb := "- &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("- &%c [%s]\n", c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 9))
	}
	return []expensive{
		{name: "aliases of aliases", sources: bomb},
		{name: "errors", sources: fill("[{secret: {name: s, items: [", "{},", "]}}]")},
		{name: "paths below paths", sources: "[{secret: {name: s, items: [" + ladder.String() + "]}}]"},
		{name: "deep directories", sources: "[{secret: {name: s, items: [" + deep.String() + "]}}]", ok: true},
		{name: "sources", sources: fill("[", "{secret: {name: s}},", "]"), ok: true},
		{name: "lists in lists", sources: fill("", "[", "")},
		{name: "complex keys", sources: fill("", "? ", "")},
		{name: "comments of elements", sources: fill("", "- #\n#\n", "")},
		{name: "a long name", sources: fill("[{secret: {name: ", "n", "}}]")},
		{name: "unprintable field names", sources: fill("[{", `"\e`+strings.Repeat(`\e`, 40)+`",`, "}]")},
	}
}

// No attributes cost much more time or memory than their size suggests, and no error text is longer than they are.
func TestParseIsBounded(t *testing.T) {
	const maxTime, maxMemory = time.Minute, 64 << 20 // generous, for a busy machine and the race detector
	for _, c := range expensiveCases() {
		t.Run(c.name, func(t *testing.T) {
			attributes := map[string]string{"sources": c.sources}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := Parse(attributes, testPod())
			text := fmt.Sprint(err)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; took > maxTime || n > maxMemory {
				t.Errorf("took %v and %d MiB, more than %v or %d MiB", took, n>>20, maxTime, maxMemory>>20)
			}
			if (err == nil) != c.ok {
				t.Errorf("got %.300s", text)
			} else if err != nil {
				checkErrorText(t, err)
			}
		})
	}
}

// Errors that are not listed are counted.
func TestParseListsTheFirstErrors(t *testing.T) {
	for _, n := range []int{maxErrors, maxErrors + 1, maxErrors + 200} {
		_, err := Parse(map[string]string{"sources": "[" + strings.Repeat("{},", n) + "]"}, testPod())
		if err == nil {
			t.Fatal("no error")
		}
		text, want := err.Error(), "]"
		if n > maxErrors {
			want = fmt.Sprintf(", and %d more]", n-maxErrors)
		}
		if got := strings.Count(text, "Required value"); got != maxErrors || !strings.HasSuffix(text, want) {
			t.Errorf("%d errors: %d are listed, want %d; the text ends in %q, want %q", n, got, maxErrors, text[len(text)-30:], want)
		}
	}
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestParseBoundsReferences(t *testing.T) {
	const manyReferences = "Too many: 258: a volume may name at most 256 ConfigMaps and Secrets, each counted once; show the others in another volume"
	for _, c := range []struct{ name, sources, want string }{
		{"as many references as may be", "[" + numbered(256, "{secret: {name: s%d}},") + "]", "<nil>"},
		{"more references", "[" + numbered(258, "{secret: {name: s%d}},") + "]", "sources[256].secret: " + manyReferences},
		{"more sources of one object", "[" + strings.Repeat("{secret: {name: s}},", 2000) + "]", "<nil>"},
		{"more references of an env file", "[{env: {path: e, envFrom: [" + numbered(258, "{secretRef: {name: s%d}},") + "]}}]", "sources[0].env.envFrom[256].secretRef: " + manyReferences},
		{
			"more references of files and variables",
			"[" + numbered(200, "{configMap: {name: s%d}},") + "{env: {path: e, env: [" +
				numbered(58, "{name: A, valueFrom: {secretKeyRef: {name: s%d, key: k}}},") + "]}}]",
			"sources[200].env.env[56].valueFrom.secretKeyRef: " + manyReferences,
		},
	} {
		_, err := Parse(listing(c.sources), testPod())
		expect.Equal(t, c.name, fmt.Sprint(err), c.want)
	}
}

func TestNames(t *testing.T) {
	const names = 2 // the namespace "ns" of each object
	for _, test := range []struct {
		name, sources string
		want          Names
	}{
		{"a whole object", "[{configMap: {name: app}}]", Names{1, 1, names + 3, 0}},
		{"items", "[{configMap: {name: app, items: [{key: a, path: x/y}, {key: bc, path: z}]}}]", Names{1, 3, names + 3 + 1 + 3 + 2 + 1, 0}},
		{"a directory counts for the source and for each item", "[{configMap: {name: app, path: dir, items: [{key: a, path: x}, {key: b, path: z}]}}]", Names{1, 3, names + 3 + 3 + 2*2, 2 * int64(len("dir/"))}},
		{"an object that is named twice", "[{configMap: {name: app}}, {configMap: {name: app, path: d}}]", Names{1, 2, names + 3 + 1, 0}},
		{"two kinds", "[{configMap: {name: app}}, {secret: {name: app}}]", Names{2, 2, 2 * (names + 3), 0}},
		{"join", "[{join: {path: f, sources: [{secret: {name: a, key: k}}, {secret: {name: b, key: kk}}]}}]", Names{2, 3, 1 + 2*(names+1) + 3, 0}},
		{
			"env", "[{env: {path: f, envFrom: [{prefix: P_, configMapRef: {name: a}}], env: [{name: V, value: abc}, {name: W, valueFrom: {secretKeyRef: {name: b, key: k}}}]}}]",
			Names{2, 4, 1 + 2 + 2*(names+1) + 4 + 2, 0},
		},
		{"expand", "[{expand: {path: f, configMap: {name: a, key: t}, env: [{name: V, value: abc}]}}]", Names{1, 3, 1 + names + 1 + 1 + 4, 0}},
		{"versions", "[{configMap: {name: app}}, {versions: {path: v}}]", Names{1, 2, names + 3 + 1, 0}},
	} {
		test.want.Items++
		test.want.Bytes += int64(len("mnt"))
		expect.Equal(t, test.name, parsed(t, map[string]string{"sources": test.sources, "directories": "[mnt]"}).Names(), test.want)
	}
}

func TestNamesAreAdded(t *testing.T) {
	some, other := Names{1, 2, 3, 4}, Names{10, 20, 30, 40}
	expect.Equal(t, "the sum", some.Plus(other), Names{11, 22, 33, 44})
	expect.Equal(t, "the difference", other.Minus(some), Names{9, 18, 27, 36})
	inSubPath := Spec{Directories: []Directory{{Path: "a/bc", Added: 1}}}
	expect.Equal(t, "a directory in a subPath", inSubPath.Names(), Names{Items: 1, Bytes: 3, Added: 1})
	limits := PodLimits(Names{Bytes: MaxPodNameBytes}, MaxPodItems+1)
	expect.Equal(t, "the most items", limits[1].Most, MaxPodItems+1)
	expect.Equal(t, "the most bytes", limits[2].Most, 2*MaxPodNameBytes)
	expect.Equal(t, "what counts as bytes", limits[2].Count(Names{Bytes: 1, Added: 2}), 3)
}

// What AddIn counts before paths are made is what Add counts after it.
func TestNamesBeforePathsAreMade(t *testing.T) {
	source := Source{Projection: &Projection{Ref: Ref{ConfigMap, "ns", "app"}, Items: []Item{{Key: "a", Path: "x"}, {Key: "b", Path: "y/z"}}}}
	whole := Source{Projection: &Projection{Ref: Ref{ConfigMap, "ns", "app"}}}
	for _, dir := range []string{"", "some/directory"} {
		before, after := NewCount(), NewCount()
		for _, s := range []Source{source, whole} {
			before.AddIn(&s, dir)
			put := s.In(Directory{Path: dir})
			after.Add(&put)
		}
		expect.Equal(t, fmt.Sprintf("%q, before and after", dir), before.Names, after.Names)
	}
}

// longSpec has n files with paths of 3,800 bytes in elements of a given length, and as many directories for mounts beside them.
func longSpec(n, element int, strategy WriteStrategy) *Spec {
	deep := strings.Repeat("/"+strings.Repeat("a", element), 3800/(element+1))
	spec := &Spec{WriteStrategy: strategy}
	for i := range n {
		source := Source{Projection: &Projection{Ref: Ref{ConfigMap, "ns", "app"}, Items: []Item{{Key: "a", Path: "f"}}}, Field: fmt.Sprintf("sources[%d].configMap", i)}
		spec.Sources = append(spec.Sources, source.In(Directory{Path: fmt.Sprint(i, deep), Field: "path"}))
		spec.Directories = append(spec.Directories, Directory{Path: fmt.Sprint("m", i, deep), Field: "directories"})
	}
	return spec
}

// Deep paths cost no more than their length. A look-up of each parent of each path would cost the square.
func TestValidateDeepPaths(t *testing.T) {
	for _, strategy := range []WriteStrategy{WriteAtomic, WriteInPlace} {
		took := func(element int) time.Duration {
			spec := longSpec(200, element, strategy)
			began := time.Now()
			must.Do(t, spec.Validate())
			return time.Since(began)
		}
		best := 1e9
		for n := 0; n < 3 && best > 20; n++ {
			flat, deep := took(253), took(1)
			best = min(best, float64(deep)/float64(flat))
		}
		expect.Between(t, fmt.Sprintf("%s: the time of paths of 1,900 elements, compared with those of 15", strategy), best, 0, 20)
	}
}
