package payload

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// What Names counts before the paths of whole objects are made is what the paths have.
func TestNames(t *testing.T) {
	app, db := volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "app"}, volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "db"}
	objects := Objects{app: {Ref: app, Data: map[string][]byte{"a": nil, "bcd": nil}, BinaryData: map[string][]byte{"e": nil}}}
	spec := &volume.Spec{Sources: []volume.Source{
		{Projection: &volume.Projection{Ref: app}},
		{Projection: &volume.Projection{Ref: app}, Below: volume.Directory{Path: "some/dir"}},
		{Projection: &volume.Projection{Ref: app, Items: []volume.Item{{Key: "a", Path: "listed"}}}},
		{Projection: &volume.Projection{Ref: db, Optional: true}, Below: volume.Directory{Path: "other"}},
	}}
	want := volume.Names{Bytes: 2 * 5, Added: 3 * int64(len("some/dir/"))}
	if got := Names(spec, objects); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Files with too many directories are refused before more is done with them.
func TestTooManyDirectories(t *testing.T) {
	app := volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "app"}
	objects := Objects{app: {Ref: app, Data: map[string][]byte{"k": nil}}}
	spec := &volume.Spec{}
	for i := range 10 {
		spec.Sources = append(spec.Sources, volume.Source{Projection: &volume.Projection{Ref: app, Items: []volume.Item{{Key: "k", Path: fmt.Sprint(i) + "/a/b/f"}}}})
	}
	if _, err := Render(spec, objects, Options{MaxDirectories: 30}); err != nil {
		t.Error(err)
	}
	_, err := Render(spec, objects, Options{MaxDirectories: 29})
	if !errors.As(err, new(*TooLargeError)) || !strings.Contains(err.Error(), "more than the 29 directories") {
		t.Errorf("got %v", err)
	}
}

// What stays of a held object costs its files once, however many sources name it.
func TestHeldObjectInManySources(t *testing.T) {
	const n = 4000
	app := volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "app"}
	held := Held{At: map[volume.Ref]volume.Version{app: {UID: "u", ResourceVersion: "1"}}}
	spec := &volume.Spec{}
	for i := range n {
		path := fmt.Sprint("f", i)
		spec.Sources = append(spec.Sources, volume.Source{Projection: &volume.Projection{Ref: app, Items: []volume.Item{{Key: "k", Path: path}}}})
		held.Files = append(held.Files, volume.File{Path: path, Keep: true, Refs: []volume.Ref{app}})
	}
	began := time.Now()
	got, err := Render(spec, nil, Options{Held: held, MaxFiles: n})
	if err != nil || len(got.Files) != n {
		t.Fatalf("%v, %+v", err, got)
	}
	t.Logf("%d sources of an object with %d files: %s", n, n, time.Since(began))
}
