package volume

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

type pathCase struct {
	name, path, want, wantErr string
}

func pathCases() []pathCase {
	element := strings.Repeat("e", 255)
	long := strings.Repeat("0123456789abcde/", 256)
	return []pathCase{
		{name: "file", path: "a", want: "a"},
		{name: "nested", path: "a/b/c", want: "a/b/c"},
		{name: "leading dot", path: "./a", want: "a"},
		{name: "double slash", path: "a//b", want: "a/b"},
		{name: "hidden file", path: ".a", want: ".a"},
		{name: "dots in a name", path: "a..b/c..", want: "a..b/c.."},
		{name: "names of the writer below a directory", path: "a/..data", want: "a/..data"},
		{name: "longest element", path: "a/" + element, want: "a/" + element},
		{name: "longest path", path: long[:4095] + "f", want: long[:4095] + "f"},

		{name: "empty", path: "", wantErr: "must not be empty"},
		{name: "absolute", path: "/etc/passwd", wantErr: "must be relative"},
		{name: "parent", path: "..", wantErr: `must not contain ".."`},
		{name: "parent inside", path: "a/../b", wantErr: `must not contain ".."`},
		{name: "parent at the end", path: "a/..", wantErr: `must not contain ".."`},
		{name: "name of the writer", path: "..data", wantErr: `must not start with ".."`},
		{name: "name of the writer after a dot", path: "./..data", wantErr: `must not start with ".."`},
		{name: "three dots", path: "...", wantErr: `must not start with ".."`},
		{name: "element of 256 bytes", path: "a/e" + element + "/b", wantErr: "each element must have at most 255 bytes"},
		{name: "bytes count, not characters", path: strings.Repeat("ü", 128), wantErr: "each element must have at most 255 bytes"},
		{name: "path of 4097 bytes", path: long + "f", wantErr: "must have at most 4096 bytes"},
		{name: "NUL", path: "a\x00b", wantErr: "must not contain a NUL byte"},
		{name: "trailing slash", path: "a/b/", want: "a/b"},
		{name: "dot", path: ".", wantErr: "must name a file, not the volume itself"},
		{name: "dot and slash", path: "./", wantErr: "must name a file, not the volume itself"},
	}
}

func TestCleanPath(t *testing.T) {
	for _, c := range pathCases() {
		t.Run(c.name, func(t *testing.T) {
			got, err := CleanPath(c.path)
			if c.wantErr != "" {
				checkError(t, err, c.wantErr)
			} else if err != nil {
				t.Error(err)
			}
			expect.Equal(t, "the clean path", got, c.want)
		})
	}
}

func TestParseMode(t *testing.T) {
	good := map[string]uint32{"00": 0, "07": 7, "0000": 0, "0644": 0o644, "0777": 0o777, "00777": 0o777}
	for s, want := range good {
		expect.Equal(t, s, uint32(must.Get(ParseMode(s))(t)), want)
	}
	for mode, isValid := range map[int32]bool{-1: false, 0: true, 0o777: true, 0o1000: false} {
		expect.Equal(t, fmt.Sprintf("mode %o", mode), CheckMode(mode) == nil, isValid)
	}
	bad := []string{
		"", "0", "7", "644", "888", "0o440", "0O440", "0x1ff", "0b1", "01000", "07777", "000000", "0888", "-0440", "+0440",
		" 0440", "0440 ", "0440\n", "04_40", "0440.0", "u=r", "rw-r--r--", "٠٤٤٠",
	}
	for _, s := range bad {
		got, err := ParseMode(s)
		expect.Equal(t, fmt.Sprintf("%q, beside an error", s), got, 0)
		checkError(t, err, `must be an octal number with a leading zero, from "0000" to "0777"`)
	}
}

// TestTargets: a path that no kubelet uses is refused with its form, and a long one isn't repeated.
func TestTargets(t *testing.T) {
	const form = "must be /k/pods/uid-1/volumes/kubernetes.io~csi/<volume name>/mount"
	longest := "/k/" + strings.Repeat("x", maxQuoted-len("/k/"))
	for target, want := range map[string]string{
		"/k/pods/uid-1/volumes/kubernetes.io~csi/v/mount":       "<nil>",
		"/k/pods/uid-2/volumes/kubernetes.io~csi/v/mount":       `Invalid value: "/k/pods/uid-2/volumes/kubernetes.io~csi/v/mount": ` + form,
		"/k/pods/uid-1/volumes/kubernetes.io~empty-dir/v/mount": `Invalid value: "/k/pods/uid-1/volumes/kubernetes.io~empty-dir/v/mount": ` + form,
		"/k/pods/uid-1/volumes/kubernetes.io~csi/../mount":      `Invalid value: "/k/pods/uid-1/volumes/kubernetes.io~csi/../mount": ` + form,
		longest:       `Invalid value: "` + longest + `": ` + form,
		longest + "x": "Invalid value: a path of 257 bytes: " + form,
	} {
		expect.Equal(t, target, fmt.Sprint((Pod{UID: "uid-1"}).CheckTarget("/k", target)), want)
	}
}

// The longest name of a file may be the name of a volume.
func TestElements(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, strings.Repeat("n", 255): true, strings.Repeat("n", 256): false,
		"": false, ".": false, "..": false, "a/b": false, "a\nb": false,
	} {
		expect.Equal(t, fmt.Sprintf("%q", name), isElement(name), want)
	}
}

// Each object is in one of the two lists, once, at its first use.
func TestRefsByNamespace(t *testing.T) {
	spec := parsed(t, map[string]string{"sources": "[{secret: {name: own}}, {secret: {name: s, namespace: other}}, {configMap: {name: own}}, {secret: {name: own}}, {secret: {name: s, namespace: other}}]"}, AcrossNamespaces())
	own := []Reference{
		{Ref: Ref{Kind: Secret, Namespace: "ns", Name: "own"}, Field: "sources[0].secret"},
		{Ref: Ref{Kind: ConfigMap, Namespace: "ns", Name: "own"}, Field: "sources[2].configMap"},
	}
	others := []Reference{{Ref: Ref{Kind: Secret, Namespace: "other", Name: "s"}, Field: "sources[1].secret.namespace"}}
	expect.Equal(t, "references in the pod's namespace", spec.LocalRefs(testPod()), own)
	expect.Equal(t, "references in others", spec.CrossNamespaceRefs(testPod()), others)
}

// NeedsPod names the author's field that needs the pod's own spec, until the source is resolved.
func TestNeedsPod(t *testing.T) {
	for name, test := range map[string]struct {
		attributes map[string]string
		want       string
	}{
		"objects":         {map[string]string{"secret": "db"}, ""},
		"other sources":   {map[string]string{"sources": "[{env: {path: e, envFrom: [{secretRef: {name: db}}]}}, {versions: {path: v}}]"}, ""},
		"the short form":  {map[string]string{"volume": "conf"}, "volume"},
		"a listed volume": {map[string]string{"sources": "[{secret: {name: db}}, {volume: {name: conf}}, {volume: {name: more}}]"}, "sources[1].volume.name"},
		"a container":     {map[string]string{"sources": "[{podEnv: {path: e, container: app}}]"}, "sources[0].podEnv.container"},
	} {
		expect.Equal(t, name, parsed(t, test.attributes).NeedsPod(), test.want)
	}
	resolved := Source{Volume: "conf", Field: "volume", Projection: &Projection{Ref: Ref{Kind: Secret, Namespace: "ns", Name: "s"}}}
	expect.Equal(t, "resolved", (&Spec{Sources: []Source{resolved}}).NeedsPod(), "")
}

// The kubelet lets a later path of a projected volume win. Between two volumes equal paths are a mistake.
func TestPathsOfPodVolumes(t *testing.T) {
	source := func(i int, volume string) Source {
		return Source{Volume: volume, Field: fmt.Sprintf("sources[%d].volume", i), Projection: &Projection{
			Ref: Ref{Kind: Secret, Namespace: "ns", Name: "s"}, Items: []Item{{Key: "k", Path: "k"}},
		}}
	}
	expect.Is(t, "one path twice in a volume", (&Spec{Sources: []Source{source(0, "a"), source(1, "a")}}).Validate(), nil)
	const want = `sources[1].volume.items[0].path: Invalid value: "k": conflicting duplicate paths: also the path of sources[0].volume.items[0].path`
	expect.Equal(t, "one path in two volumes", fmt.Sprint((&Spec{Sources: []Source{source(0, "a"), source(1, "b")}}).Validate()), want)
}

// An error shows a value of up to 64 bytes whole.
func TestShorten(t *testing.T) {
	const most = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for value, want := range map[string]string{
		"":         "",
		most:       most,
		most + "g": most + "... (65 bytes)",
		// A character is not cut.
		most[:63] + "ü": most[:63] + "... (65 bytes)",
	} {
		expect.Equal(t, value, shorten(value), want)
	}
}

func TestDirectories(t *testing.T) {
	const app = "[{configMap: {name: app, items: [{key: k, path: conf/app.yaml}]}}, {secret: {name: db}}]"
	with := func(directories string) map[string]string {
		return map[string]string{"sources": app, "directories": directories}
	}
	inPlace := func(directories string) map[string]string {
		return map[string]string{"sources": app, "directories": directories, "writeStrategy": "InPlace"}
	}
	below := func(directories, strategy string) map[string]string {
		return map[string]string{"sources": "[{configMap: {name: c, path: rules.d}}]", "directories": directories, "writeStrategy": strategy}
	}
	const (
		elsewhere = ": mount elsewhere, or map the key to another path"
		file      = `the file "conf/app.yaml" of sources[0].configMap.items[0].path`
		rules     = `the directory "rules.d" of sources[0].configMap.path`
		taken     = `must not be "conf" or below it, as ` + file + " is" + elsewhere
	)
	type directories struct {
		name       string
		attributes map[string]string
		// want are those in the root, and those among files, or the refusal.
		want string
	}
	row := func(name string, attributes map[string]string, want string) directories {
		return directories{name, attributes, want}
	}
	for _, test := range []directories{
		row("none", with("[]"), `[] []`),
		// Mounts conflict with the directories of sources, also if their keys are not known.
		row("beside a source's directory", below("[tls]", "Atomic"), `["tls"] []`),
		row("below a source's directory in place", below("[rules.d/x, tls]", "InPlace"), `["tls"] ["rules.d/x"]`),
		row("below a source's directory", below("[rules.d/x]", "Atomic"),
			`directories[0]: Invalid value: "rules.d/x": must not be "rules.d" or below it, as `+rules+` is`+elsewhere),
		row("at a source's directory in place", below("[rules.d]", "InPlace"), `directories[0]: Invalid value: "rules.d": must not hide `+rules+elsewhere),
		row("YAML", with("- tls\n- a/b/c\n"), `["a/b/c" "tls"] []`),
		row("JSON", with(`["tls", "a/b/"]`), `["a/b" "tls"] []`),
		row("twice, and one below the other", with("[a, a/b, a]"), `["a" "a/b"] []`),
		row("a name that begins as a file's", with("[conf-d, con]"), `["con" "conf-d"] []`),
		row("short form", map[string]string{"secret": "db", "directories": "[tls]"}, `["tls"] []`),
		row("no list", with("tls"), `directories: Invalid value: "string": must be a list`),
		row("no text", with("[5]"), `directories[0]: Invalid value: "number": must be a string (quote it)`),
		row("empty", with(`[""]`), "directories[0]: Required value: must be a relative path"),
		row("absolute", with("[/tls]"), `directories[0]: Invalid value: "/tls": must be relative`),
		row("out of the volume", with("[a, ../x]"), `directories[1]: Invalid value: "../x": must not contain ".."`),
		row("the writer's own", with("[..data]"), `directories[0]: Invalid value: "..data": must not start with ".."`),
		row("below a directory of files", with("[conf/tls]"), `directories[0]: Invalid value: "conf/tls": `+taken),
		row("at a directory of files", with("[conf]"), `directories[0]: Invalid value: "conf": `+taken),
		row("at a file", with("[conf/app.yaml]"), `directories[0]: Invalid value: "conf/app.yaml": `+taken),
		row("in place", inPlace("[conf/tls, tls]"), `["tls"] ["conf/tls"]`),
		row("at a directory of files in place", inPlace("[conf]"), `directories[0]: Invalid value: "conf": must not hide `+file+elsewhere),
		row("at a directory of directories in place", map[string]string{"sources": "[{secret: {name: db, items: [{key: k, path: a/b/c/d}]}}]", "directories": "[a/b]", "writeStrategy": "InPlace"},
			`directories[0]: Invalid value: "a/b": must not hide the file "a/b/c/d" of sources[0].secret.items[0].path`+elsewhere),
		row("below a file in place", inPlace("[conf/app.yaml/x]"), `directories[0]: Invalid value: "conf/app.yaml/x": must not be below `+file+elsewhere),
		row("below a file in place, as the second", inPlace("[tls, conf/app.yaml/x]"), `directories[1]: Invalid value: "conf/app.yaml/x": must not be below `+file+elsewhere),
		row("at a file in place", inPlace("[conf/app.yaml]"), `directories[0]: Invalid value: "conf/app.yaml": must not hide `+file+elsewhere),
	} {
		spec, err := Parse(test.attributes, testPod())
		got := fmt.Sprint(err)
		if err == nil {
			root, inner := spec.MountPoints()
			got = fmt.Sprintf("%q %q", root, inner)
		}
		expect.Equal(t, test.name, got, test.want)
	}
}

// TestAnyJSON tests JSON that YAML's parser refuses or reads differently.
func TestAnyJSON(t *testing.T) {
	value := func(s string) string {
		return `[{"env":{"path":"e","env":[{"name":"A","value":` + s + `}]}}]`
	}
	for name, test := range map[string]struct{ text, want string }{
		"escaped slash, as PHP writes it":          {`"a\/b"`, "a/b"},
		"surrogate pair, as Python writes it":      {`"\ud83d\ude00"`, "\U0001f600"},
		"surrogate pair in capitals":               {`"\uD83D\uDE00"`, "\U0001f600"},
		"pair after an escaped backslash":          {`"\\\ud83d\ude00\\"`, "\\\U0001f600\\"},
		"what looks like half of a pair":           {`"\\ud83d"`, `\ud83d`},
		"every other escape":                       {`"\"\\\b\f\n\r\t\u0041\u00e9\u20ac"`, "\"\\\b\f\n\r\tA\u00e9\u20ac"},
		"characters that YAML doesn't allow":       {"\"\x7f\ufeff\ufffe\"", "\x7f\ufeff\ufffe"},
		"line ends of YAML that JSON doesn't know": {"\"a\u0085b\u2028c\u2029d\"", "a\u0085b\u2028c\u2029d"},
		"halves of surrogate pairs":                {`"a\ud83db\ude00"`, "a\ufffdb\ufffd"},
		"empty":                                    {`""`, ""},
	} {
		expect.Equal(t, name, parsed(t, listing(value(test.text))).Sources[0].Env.Vars[0].Value, test.want)
	}
}

// TestRefusedJSON: JSON is refused as YAML is, with the field's path.
func TestRefusedJSON(t *testing.T) {
	for _, test := range []struct{ name, sources, want string }{
		{"unknown field", `[{"secret":{"name":"a\/b","nam\u0065s":1}}]`, `sources[0].secret.names: Forbidden: unknown field; known are canary, items, name, namespace, optional, path`},
		{"field twice", "[\n{\"secret\":{\"name\":\"s\",\n\"items\":[{\"key\":\"a\",\"path\":\"a\\/b\"}],\n\"name\":\"t\"}}]", `sources[0].secret.name: Forbidden: must not be set twice`},
		{"field twice, once escaped", `[{"secret":{"name":"s","n\u0061me":"s"}}]`, `sources[0].secret.name: Forbidden: must not be set twice`},
		{"null and a value", `[{"secret":{"name":null,"name":"s"}}]`, `sources[0].secret.name: Forbidden: must not be set twice`},
		{"number too large for one", `[{"secret":{"name":1e999}}]`, `sources[0].secret.name: Invalid value: "number": must be a string (quote it)`},
		{"huge mode", `[{"secret":{"name":"s","items":[{"key":"k","path":"k","mode":99999999999999999999}]}}]`, `sources[0].secret.items[0].mode: Invalid value: "number": must be an integer`},
		{"nested beyond reason", strings.Repeat("[", 20000) + strings.Repeat("]", 20000), `sources: Invalid value: "a string of 40000 bytes": must be YAML or JSON`},
	} {
		_, err := Parse(map[string]string{"sources": test.sources}, testPod())
		expect.Has(t, test.name, fmt.Sprint(err), test.want)
	}
}
