package binding

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// TestMustRewrite: which files must be written although their objects may wait.
func TestMustRewrite(t *testing.T) {
	ref := func(name string) volume.Ref { return volume.Ref{Kind: volume.ConfigMap, Namespace: "shop", Name: name} }
	const (
		items = "{configMap: {name: a, items: [{key: k, path: file}]}}"
		env   = "{env: {path: file, envFrom: [{configMapRef: {name: a}}, {configMapRef: {name: b}}]}}"
		text  = "{expand: {path: file, configMap: {name: a, key: k}, env: [{name: V, valueFrom: {configMapKeyRef: {name: b, key: k}}}]}}"
	)
	both, none := []string{"a", "b"}, []string{}
	for _, test := range []struct {
		name, source            string
		isThere                 bool
		shown, refused, unknown []string
		want                    bool
	}{
		{"a text that is there", text, true, both, none, none, false},
		{"a text of a refused object", text, true, both, both[:1], none, true},
		{"a text that is gone", text, false, both, none, none, true},
		{"a text that was never shown", text, false, both[:1], none, none, false},
		{"a text that was removed with its refused object", text, false, both, both[:1], none, false},
		{"a text of an unknown object that is gone", text, false, both[:1], none, both[1:], true},
		{"an env file that is there, of a refused object", env, true, both, both[:1], none, false},
		{"an env file that is gone", env, false, both[:1], none, none, true},
		{"an env file that was never shown", env, false, none, none, none, false},
		{"a file that is there, of a refused object", items, true, both[:1], both[:1], none, false},
		{"a file that is gone", items, false, both[:1], none, none, true},
		{"a file that was removed with its refused object", items, false, both[:1], both[:1], none, false},
		{"a file that was never shown", items, false, none, none, none, false},
	} {
		parsed := must.Get(volume.Parse(map[string]string{"sources": "[" + test.source + "]"}, volume.Pod{Namespace: "shop"}))(t)
		var files []volume.File
		if test.isThere {
			files = []volume.File{{Path: "file"}}
		}
		shown := record.Versions{}
		for _, name := range test.shown {
			shown[ref(name)] = volume.Version{UID: "u", ResourceVersion: "1"}
		}
		set := func(names []string) map[volume.Ref]bool {
			all := map[volume.Ref]bool{}
			for _, name := range names {
				all[ref(name)] = true
			}
			return all
		}
		s := &Spec{Spec: parsed, Resolved: parsed}
		if got := s.MustRewrite(files, shown, set(test.refused), set(test.unknown)); (len(got) > 0) != test.want {
			t.Errorf("%s: %v, want any: %t", test.name, got, test.want)
		}
	}
}

// TestMistakes: each mistake is reported once, until another one or none was there; a node with very many begins again.
func TestMistakes(t *testing.T) {
	m := &mistakes{reported: map[types.UID]string{}}
	for i, step := range []struct {
		object     types.UID
		annotation string
		want       bool
	}{{"a", "x", true}, {"b", "x", true}, {"a", "x", false}, {"b", "x", false}, {"a", "y", true}, {"b", "", false}, {"b", "x", true}} {
		if got := m.isNews(step.object, step.annotation); got != step.want {
			t.Errorf("step %d: %t", i, got)
		}
	}
	for i := range 3 * maxMistakes {
		if m.isNews(types.UID(fmt.Sprint("o", i)), "x"); len(m.reported) > maxMistakes {
			t.Fatalf("%d are kept", len(m.reported))
		}
	}
}
