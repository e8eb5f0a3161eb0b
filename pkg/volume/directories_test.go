package volume

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestDirectories(t *testing.T) {
	const app = "[{configMap: {name: app, items: [{key: k, path: conf/app.yaml}]}}, {secret: {name: db}}]"
	with := func(directories string, more ...string) map[string]string {
		attributes := map[string]string{"sources": app, "directories": directories}
		for i := 0; i < len(more); i += 2 {
			attributes[more[i]] = more[i+1]
		}
		return attributes
	}
	const taken = `must not be "conf" or below it, as the file "conf/app.yaml" of sources[0].configMap.items[0].path is: mount elsewhere, or map the key to another path`
	for _, test := range []struct {
		name        string
		attributes  map[string]string
		root, inner []string
		refused     string
	}{
		{name: "none", attributes: with("[]")},
		{name: "YAML", attributes: with("- tls\n- a/b/c\n"), root: []string{"a/b/c", "tls"}},
		{name: "JSON", attributes: with(`["tls", "a/b/"]`), root: []string{"a/b", "tls"}},
		{name: "twice, and one below the other", attributes: with("[a, a/b, a]"), root: []string{"a", "a/b"}},
		{name: "a name that begins as a file's", attributes: with("[conf-d, con]"), root: []string{"con", "conf-d"}},
		{name: "short form", attributes: map[string]string{"secret": "db", "directories": "[tls]"}, root: []string{"tls"}},
		{name: "no list", attributes: with("tls"), refused: `directories: Invalid value: "string": must be a list`},
		{name: "no text", attributes: with("[5]"), refused: `directories[0]: Invalid value: "number": must be a string (quote it)`},
		{name: "empty", attributes: with(`[""]`), refused: "directories[0]: Required value: must be a relative path"},
		{name: "absolute", attributes: with("[/tls]"), refused: `directories[0]: Invalid value: "/tls": must be relative`},
		{name: "out of the volume", attributes: with("[a, ../x]"), refused: `directories[1]: Invalid value: "../x": must not contain ".."`},
		{name: "the writer's own", attributes: with("[..data]"), refused: `directories[0]: Invalid value: "..data": must not start with ".."`},
		{name: "below a directory of files", attributes: with("[conf/tls]"), refused: `directories[0]: Invalid value: "conf/tls": ` + taken},
		{name: "at a directory of files", attributes: with("[conf]"), refused: `directories[0]: Invalid value: "conf": ` + taken},
		{name: "at a file", attributes: with("[conf/app.yaml]"), refused: `directories[0]: Invalid value: "conf/app.yaml": ` + taken},
		{name: "in place", attributes: with("[conf/tls, tls]", "writeStrategy", "InPlace"), root: []string{"tls"}, inner: []string{"conf/tls"}},
		{
			name: "at a directory of files in place", attributes: with("[conf]", "writeStrategy", "InPlace"),
			refused: `directories[0]: Invalid value: "conf": must not hide the file "conf/app.yaml" of sources[0].configMap.items[0].path: mount elsewhere, or map the key to another path`,
		},
		{
			name: "at a directory of directories in place", attributes: map[string]string{"sources": "[{secret: {name: db, items: [{key: k, path: a/b/c/d}]}}]", "directories": "[a/b]", "writeStrategy": "InPlace"},
			refused: `directories[0]: Invalid value: "a/b": must not hide the file "a/b/c/d" of sources[0].secret.items[0].path: mount elsewhere, or map the key to another path`,
		},
		{
			name: "below a file in place", attributes: with("[conf/app.yaml/x]", "writeStrategy", "InPlace"),
			refused: `directories[0]: Invalid value: "conf/app.yaml/x": must not be below the file "conf/app.yaml" of sources[0].configMap.items[0].path: mount elsewhere, or map the key to another path`,
		},
		{
			name: "at a file in place", attributes: with("[conf/app.yaml]", "writeStrategy", "InPlace"),
			refused: `directories[0]: Invalid value: "conf/app.yaml": must not hide the file "conf/app.yaml" of sources[0].configMap.items[0].path: mount elsewhere, or map the key to another path`,
		},
	} {
		spec, err := Parse(test.attributes, testPod())
		if got := fmt.Sprint(err); test.refused != "" || err != nil {
			if got != test.refused {
				t.Errorf("%s: got  %s\nwant %s", test.name, got, test.refused)
			}
			continue
		}
		if root, inner := spec.MountPoints(); !reflect.DeepEqual(root, test.root) || !reflect.DeepEqual(inner, test.inner) {
			t.Errorf("%s: got %q and %q, want %q and %q", test.name, root, inner, test.root, test.inner)
		}
	}
}

// A list of the largest size is parsed quickly.
func TestManyDirectories(t *testing.T) {
	spec, err := Parse(map[string]string{"secret": "s", "directories": "[" + strings.Repeat("a,", 20_000) + "b/" + strings.Repeat("c/", 2_000) + "d]"}, testPod())
	if err != nil {
		t.Fatal(err)
	}
	if root, inner := spec.MountPoints(); len(root) != 2 || inner != nil {
		t.Errorf("got %d and %d directories", len(root), len(inner))
	}
}
