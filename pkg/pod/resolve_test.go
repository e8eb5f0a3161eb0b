package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

var testPod = volume.Pod{Namespace: "ns", Name: "web-0", UID: "8f7e", ServiceAccount: "web"}

func parsed(t *testing.T, sources string) *volume.Spec {
	t.Helper()
	return must.Get(volume.Parse(map[string]string{"sources": sources}, testPod))(t)
}

// resolveAs resolves a spec for a pod whose volumes all show the sources, and whose containers have no variables. Or the pod has neither.
func resolveAs(spec *volume.Spec, shown []volume.Source, neither error) (*volume.Spec, error) {
	resolved, _, err := Resolve(spec, func(string) (volume.Env, []string, error) { return volume.Env{}, nil, neither },
		func(string) ([]volume.Source, error) { return shown, neither }, nil, "", nil)
	return resolved, err
}

func TestResolve(t *testing.T) {
	spec := parsed(t, "[{secret: {name: s}}, {podEnv: {path: d/e, container: main, mode: 0400, format: shell}}, {volume: {name: v}}, {podEnv: {path: f, container: main}}]")
	expect.Equal(t, "what needs the pod", spec.NeedsPod(), "sources[1].podEnv.container")
	before := slices.Clone(spec.Sources)
	env := volume.Env{From: []volume.EnvFrom{{Ref: volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "e"}, Field: "f"}}, Vars: []volume.EnvVar{{Name: "A", Value: "1"}}}
	shown := []volume.Source{native("configMap", "a", "x"), native("secret", "b")}
	asked := ""
	resolved, leftOut, err := Resolve(spec, func(container string) (volume.Env, []string, error) {
		asked += "container " + container + ", "
		return env, []string{"B", "A", "B"}, nil
	}, func(volume string) ([]volume.Source, error) {
		asked += "volume " + volume + ", "
		return shown, nil
	}, nil, "", nil)
	if err != nil || !slices.Equal(leftOut, []string{"A", "B"}) || asked != "container main, volume v, " {
		t.Errorf("left out %q, asked for %s, %v", leftOut, asked, err)
	}
	file := func(i int, path string, format volume.EnvFormat) volume.Source {
		return volume.Source{Path: path, Mode: before[i].Mode, Format: format, Env: &env, Field: before[i].Field}
	}
	want := *spec
	want.Sources = []volume.Source{before[0], file(1, "d/e", volume.EnvShell), shown[0], shown[1], file(3, "f", volume.EnvDotenv)}
	expect.Equal(t, "the resolved spec", resolved, &want)
	expect.Equal(t, "what still needs the pod", resolved.NeedsPod(), "")
	expect.Equal(t, "items that are listed, one of them in the pod's spec", CountItems(resolved), 1)
	expect.Equal(t, "the spec's own sources", spec.Sources, before)
}

// What a spec will name is asked before any path of it is made: a long directory in front of many items is refused at once.
func TestResolveAsksFirst(t *testing.T) {
	dir := strings.Repeat("a/", 1900) + "b"
	attributes := map[string]string{"sources": "[{volume: {name: v, path: " + dir + "}}, {podEnv: {path: e, container: c}}]", "directories": "[d]"}
	spec := must.Get(volume.Parse(attributes, testPod))(t)
	keys := make([]string, 8192)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	shown := []volume.Source{native("configMap", "app", keys...)}
	var asked volume.Names
	resolve := func(answer error) (*volume.Spec, error) {
		resolved, _, err := Resolve(spec,
			func(string) (volume.Env, []string, error) {
				return volume.Env{Vars: []volume.EnvVar{{Name: "A", Value: "1"}}}, nil, nil
			},
			func(string) ([]volume.Source, error) { return shown, nil }, func(string) []Below { return []Below{{Path: "m", Field: "f"}} }, "",
			func(n volume.Names) error { asked = n; return answer })
		return resolved, err
	}
	resolved := must.Get(resolve(nil))(t)
	if want := resolved.Names(); asked != want || asked.Items != 2+8192+1+2 || asked.Added != 8192*int64(len(dir)+1) {
		t.Errorf("asked for %+v, the result names %+v", asked, want)
	}
	refused := errors.New("too many")
	allocated := testing.AllocsPerRun(1, func() {
		if _, err := resolve(refused); !errors.Is(err, refused) {
			t.Error(err)
		}
	})
	expect.Between(t, "allocations for a refusal", allocated, 0, 100)
}

// native returns a source of one of the pod's own volumes, with keys that are mapped to files of the same names.
func native(kind, name string, keys ...string) volume.Source {
	p := &volume.Projection{Ref: volume.Ref{Kind: volume.Kind(strings.ToUpper(kind[:1]) + kind[1:]), Namespace: "ns", Name: name}}
	for _, key := range keys {
		p.Items = append(p.Items, volume.Item{Key: key, Path: key})
	}
	return volume.Source{Projection: p, Volume: "v", Field: "spec.volumes[1].projected.sources[0]." + kind}
}

func TestResolveRefuses(t *testing.T) {
	const item = "spec.volumes[1].projected.sources[0].configMap.items[0].path"
	mode := fs.FileMode(0o400)
	later := native("secret", "b", "x")
	later.Field, later.Projection.Items[0].Mode = "spec.volumes[1].projected.sources[1].secret", &mode
	many := slices.Repeat([]volume.Source{native("secret", "s")}, 1000)
	apart := make([]volume.Source, volume.MaxReferences)
	for i := range apart {
		apart[i] = native("secret", fmt.Sprint(i))
		apart[i].Field = fmt.Sprintf("spec.volumes[1].projected.sources[%d].secret", i)
	}
	for _, c := range []struct {
		name, sources string
		shown         []volume.Source
		err           error
		want          string
	}{
		{"nothing", "[{volume: {name: v}}]", nil, nil, "<nil>"},
		{"one path twice in one volume", "[{volume: {name: v}}]", []volume.Source{native("configMap", "a", "x"), later}, nil, "<nil>"},
		{"many of one object", "[{volume: {name: v}}]", many, nil, "<nil>"},
		{"many objects", "[{env: {path: e, envFrom: [{secretRef: {name: s}}]}}, {volume: {name: v}}]", apart[:volume.MaxReferences-1], nil, "<nil>"},
		{
			"too many objects", "[{env: {path: e, envFrom: [{secretRef: {name: s}}, {secretRef: {name: t}}]}}, {volume: {name: v}}]", apart[:volume.MaxReferences-1], nil,
			"spec.volumes[1].projected.sources[254].secret: Too many: 257: a volume may name at most 256 ConfigMaps and Secrets, each counted once; show the others in another volume",
		},
		{"a path of a source before", "[{podEnv: {path: x, container: c}}, {volume: {name: v}}]", []volume.Source{native("configMap", "a", "x")}, nil, item + `: Invalid value: "x": conflicting duplicate paths: also the path of sources[0].podEnv.path`},
		{"a path of a source after", "[{volume: {name: v}}, {secret: {name: s, items: [{key: k, path: x}]}}]", []volume.Source{native("configMap", "a", "x")}, nil, `sources[1].secret.items[0].path: Invalid value: "x": conflicting duplicate paths: also the path of ` + item},
		{"a file where a source before needs a directory", "[{podEnv: {path: conf/app, container: c}}, {volume: {name: v}}]", []volume.Source{native("configMap", "a", "conf")}, nil, `sources[0].podEnv.path: Invalid value: "conf/app": must not lie below "conf", which ` + item + ` makes a file`},
		{"below a file of a source before", "[{configMap: {name: m, items: [{key: k, path: conf}]}}, {volume: {name: v}}]", []volume.Source{native("configMap", "a", "x", "conf/app")}, nil, `spec.volumes[1].projected.sources[0].configMap.items[1].path: Invalid value: "conf/app": must not lie below "conf", which sources[0].configMap.items[0].path makes a file`},
		{"below a file of a volume before", "[{volume: {name: v}}, {podEnv: {path: conf/app, container: c}}]", []volume.Source{native("configMap", "a", "conf")}, nil, `sources[1].podEnv.path: Invalid value: "conf/app": must not lie below "conf", which ` + item + ` makes a file`},
		{"a file and a directory in one volume", "[{volume: {name: v}}]", []volume.Source{native("configMap", "a", "conf"), native("secret", "b", "conf/app")}, nil, "<nil>"},
		{"no such volume", "[{volume: {name: v}}]", nil, errors.New("none"), "sources[0].volume.name: none"},
		{"no such container", "[{podEnv: {path: x, container: c}}]", nil, errors.New("none"), "sources[0].podEnv.container: none"},
	} {
		resolved, err := resolveAs(parsed(t, c.sources), c.shown, c.err)
		if text := fmt.Sprint(err); text != c.want || (err == nil) != (resolved != nil) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s:\ngot  %.300s\nwant %s", c.name, text, c.want)
		}
	}
}

// What the pod's own spec adds is kept once, however often it is named, and each object counts once.
func TestPodEnvIsBounded(t *testing.T) {
	var files strings.Builder
	files.WriteString("[")
	for i := range 100 {
		fmt.Fprintf(&files, "{podEnv: {path: e%d, container: main}},", i)
	}
	spec := parsed(t, files.String()+"]")
	reads := 0
	with := func(env volume.Env) (*volume.Spec, error) {
		resolved, _, err := Resolve(spec, func(string) (volume.Env, []string, error) {
			reads++
			return env, nil, nil
		}, nil, nil, "", nil)
		return resolved, err
	}
	resolved, err := with(volume.Env{Vars: make([]volume.EnvVar, 10000)})
	if err != nil || reads != 1 || &resolved.Sources[0].Env.Vars[0] != &resolved.Sources[99].Env.Vars[0] {
		t.Errorf("%v after %d reads", err, reads)
	}
	var many volume.Env
	for i := range volume.MaxReferences + 1 {
		many.From = append(many.From, volume.EnvFrom{Ref: volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: fmt.Sprint(i)}, Field: fmt.Sprintf("spec.containers[0].envFrom[%d].secretRef", i)})
	}
	_, err = with(many)
	const want = "spec.containers[0].envFrom[256].secretRef: Too many: 257: a volume may name at most 256 ConfigMaps and Secrets, each counted once; show the others in another volume"
	expect.Equal(t, "the error", fmt.Sprint(err), want)
}

// TestResolveInADirectory: all files of the pod's own volume are in the directory of its source, with or without items, and no others are.
// The sources from the pod's spec are not changed.
func TestResolveInADirectory(t *testing.T) {
	spec := parsed(t, "[{volume: {name: v, path: a/b}}, {secret: {name: s, path: a, items: [{key: k, path: x}]}}]")
	shown := []volume.Source{native("configMap", "items", "x", "y/z"), native("secret", "whole")}
	dir := volume.Directory{Path: "a/b", Field: "sources[0].volume.path"}
	for range 2 { // the second time with the same sources
		resolved := must.Get(resolveAs(spec, shown, nil))(t)
		items := resolved.Sources[0].Projection.Items
		if resolved.Sources[0].Below != dir || len(items) != 2 || items[0].Path != "a/b/x" || items[1].Path != "a/b/y/z" {
			t.Errorf("with items: %+v, %+v", resolved.Sources[0], items)
		}
		if whole := resolved.Sources[1]; whole.Below != dir || len(whole.Projection.Items) != 0 {
			t.Errorf("without items: %+v", whole)
		}
		expect.Equal(t, "the other source", resolved.Sources[2], spec.Sources[1])
	}
	if path := shown[0].Projection.Items[0].Path; path != "x" || shown[0].Below.Path != "" {
		t.Errorf("what was shown became %q in %q", path, shown[0].Below.Path)
	}
	// With the pod's spec, a path may be too long or taken.
	long := parsed(t, "[{volume: {name: v, path: a}}, {secret: {name: s, items: [{key: k, path: a/x}]}}]")
	const want = `sources[1].secret.items[0].path: Invalid value: "a/x": conflicting duplicate paths: also the path of spec.volumes[1].projected.sources[0].configMap.items[0].path`
	_, err := resolveAs(long, shown, nil)
	expect.Equal(t, "the error", fmt.Sprint(err), want)
}
