package pod

import (
	"reflect"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// TestResolveInADirectory: all files of the pod's own volume are in the directory of its source, with or without items, and no others are.
// The sources from the pod's spec are not changed.
func TestResolveInADirectory(t *testing.T) {
	spec, err := volume.Parse(map[string]string{"sources": "[{volume: {name: v, path: a/b}}, {secret: {name: s, path: a, items: [{key: k, path: x}]}}]"}, testPod)
	must(t, err)
	shown := []volume.Source{native("configMap", "items", "x", "y/z"), native("secret", "whole")}
	dir := volume.Directory{Path: "a/b", Field: "sources[0].volume.path"}
	for range 2 { // the second time with the same sources
		resolved, _, err := Resolve(spec, nil, func(string) ([]volume.Source, error) { return shown, nil }, nil, "", nil)
		must(t, err)
		items := resolved.Sources[0].Projection.Items
		if resolved.Sources[0].Below != dir || len(items) != 2 || items[0].Path != "a/b/x" || items[1].Path != "a/b/y/z" {
			t.Errorf("with items: %+v, %+v", resolved.Sources[0], items)
		}
		if whole := resolved.Sources[1]; whole.Below != dir || len(whole.Projection.Items) != 0 {
			t.Errorf("without items: %+v", whole)
		}
		if !reflect.DeepEqual(resolved.Sources[2], spec.Sources[1]) {
			t.Errorf("the other source became %+v", resolved.Sources[2])
		}
	}
	if path := shown[0].Projection.Items[0].Path; path != "x" || shown[0].Below.Path != "" {
		t.Errorf("what was shown became %q in %q", path, shown[0].Below.Path)
	}
	// With the pod's spec, a path may be too long or taken.
	long, err := volume.Parse(map[string]string{"sources": "[{volume: {name: v, path: a}}, {secret: {name: s, items: [{key: k, path: a/x}]}}]"}, testPod)
	must(t, err)
	const want = `sources[1].secret.items[0].path: Invalid value: "a/x": conflicting duplicate paths: also the path of spec.volumes[1].projected.sources[0].configMap.items[0].path`
	if _, _, err = Resolve(long, nil, func(string) ([]volume.Source, error) { return shown, nil }, nil, "", nil); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
