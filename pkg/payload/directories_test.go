package payload

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/volume"
)

func TestDirectories(t *testing.T) {
	with := func(strategy volume.WriteStrategy, s *volume.Spec, paths ...string) *volume.Spec {
		s.WriteStrategy = strategy
		for i, path := range paths {
			s.Directories = append(s.Directories, volume.Directory{Path: path, Field: fmt.Sprintf("directories[%d]", i)})
		}
		return s
	}
	conf := source(0, volume.ConfigMap, "m", "k:conf/k")
	whole := source(1, volume.Secret, "s")
	const fix = `; map the key to another path, or mount elsewhere`
	for _, test := range []struct {
		name        string
		spec        *volume.Spec
		keys        []string // of Secret s
		root, inner []string
		refused     string
	}{
		{name: "none", spec: with(volume.WriteAtomic, spec(conf, whole)), keys: []string{"a"}},
		{name: "in the root", spec: with(volume.WriteAtomic, spec(conf, whole), "tls", "a/b"), keys: []string{"b"}, root: []string{"a/b", "tls"}},
		{name: "among files", spec: with(volume.WriteInPlace, spec(conf, whole), "tls", "conf/x"), keys: []string{"b"}, root: []string{"tls"}, inner: []string{"conf/x"}},
		{
			name: "among files that are not there yet", spec: with(volume.WriteInPlace, spec(optional(source(0, volume.ConfigMap, "m", "gone:conf/k"))), "conf/x"),
			inner: []string{"conf/x"},
		},
		{
			name: "a key at a directory", spec: with(volume.WriteAtomic, spec(conf, whole), "tls"), keys: []string{"tls"},
			refused: `directories[0]: the directory "tls" for a mount can't be beside the file "tls"` + fix,
		},
		{
			name: "a key above a directory", spec: with(volume.WriteAtomic, spec(whole), "x", "a/b/c"), keys: []string{"a"},
			refused: `directories[1]: the directory "a/b/c" for a mount can't be beside the file "a"` + fix,
		},
		{
			name: "a key above a directory in place", spec: with(volume.WriteInPlace, spec(whole), "a/b/c"), keys: []string{"a"},
			refused: `directories[0]: the directory "a/b/c" for a mount can't be beside the file "a"` + fix,
		},
		{
			name: "a key above a directory among files that are not there yet",
			spec: with(volume.WriteInPlace, spec(optional(source(0, volume.ConfigMap, "m", "gone:conf/k")), whole), "conf/x"), keys: []string{"conf"},
			refused: `directories[0]: the directory "conf/x" for a mount can't be beside the file "conf"` + fix,
		},
	} {
		got, err := Render(test.spec, objects(object(volume.ConfigMap, "m", "k"), object(volume.Secret, "s", test.keys...)), Options{})
		if text := fmt.Sprint(err); test.refused != "" || err != nil {
			if text != test.refused || strings.Contains(text, leak.Value) {
				t.Errorf("%s: got  %s\nwant %s", test.name, text, test.refused)
			}
			continue
		}
		if !reflect.DeepEqual(got.Directories, test.root) || !reflect.DeepEqual(got.Inner, test.inner) {
			t.Errorf("%s: got %q and %q", test.name, got.Directories, got.Inner)
		}
	}
}
