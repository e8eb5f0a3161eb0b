package payload

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// sharing returns a spec with files of the ConfigMap "held", of the Secret "free", and of both, and the two references.
func sharing() (s *volume.Spec, held, free volume.Ref) {
	both := envSource(2, "both.env", volume.Env{From: []volume.EnvFrom{envFrom(volume.ConfigMap, "held", ""), envFrom(volume.Secret, "free", "")}})
	own := envSource(3, "free.env", volume.Env{From: []volume.EnvFrom{envFrom(volume.Secret, "free", "")}})
	s = spec(
		source(0, volume.ConfigMap, "held"), source(1, volume.Secret, "free", "y:y"), both, own, joined("ConfigMap/held/x"),
		volume.Source{Path: ".versions", Versions: true, Field: "sources[5].versions"},
	)
	return s, s.Sources[0].Projection.Ref, s.Sources[1].Projection.Ref
}

// showHeld returns each file as path=kept or path=content, with the number of its objects. The versions file shows only resourceVersions.
func showHeld(files []volume.File) (all []string) {
	for i := range files {
		f, text := &files[i], "kept"
		switch {
		case f.Path == ".versions":
			var versions []string
			for line := range strings.Lines(string(f.Data)) {
				if _, version, found := strings.Cut(line, `"resourceVersion": `); found {
					versions = append(versions, strings.TrimSpace(version))
				}
			}
			text = strings.Join(versions, ",")
		case !f.Keep:
			text = strings.TrimSpace(string(f.Data))
		}
		all = append(all, fmt.Sprintf("%s=%s of %d", f.Path, text, len(f.Refs)))
	}
	return all
}

// TestRenderHeld: files of a held object stay as they are, also those that another object is part of. All other files are new.
func TestRenderHeld(t *testing.T) {
	s, held, free := sharing()
	kept := func(path string, refs ...volume.Ref) volume.File {
		return volume.File{Path: path, Keep: true, Refs: refs}
	}
	shown := []volume.File{
		kept("both.env", held, free), kept("d/ca.pem", held), kept("free.env", free), kept("old", held), kept("x", held), kept("y", free),
	}
	newest := objects(values(volume.ConfigMap, "held", "x", "new", "z", "new"), values(volume.Secret, "free", "y", "2"))
	for name, test := range map[string]struct {
		held Held
		want []string
	}{
		"all its files": {
			Held{At: map[volume.Ref]volume.Version{held: {UID: "u", ResourceVersion: "0"}}, Files: shown},
			[]string{`.versions="0","1" of 2`, "both.env=kept of 2", "d/ca.pem=kept of 1", "free.env=y='2' of 1", "old=kept of 1", "x=kept of 1", "y=2 of 1"},
		},
		"the volume doesn't show it yet": {
			Held{At: map[volume.Ref]volume.Version{held: {}}, Files: []volume.File{kept("free.env", free), kept("y", free)}},
			[]string{`.versions="1" of 1`, "both.env=y='2' of 1", "d/ca.pem= of 0", "free.env=y='2' of 1", "y=2 of 1"},
		},
		"none is held": {
			Held{Files: shown},
			[]string{
				`.versions="1","1" of 2`, "both.env=x='new'\ny='2'\nz='new' of 2", "d/ca.pem=new of 1", "free.env=y='2' of 1",
				"x=new of 1", "y=2 of 1", "z=new of 1",
			},
		},
	} {
		got, err := Render(s, newest, Options{Held: test.held})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if files := showHeld(got.Files); !slices.Equal(files, test.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, files, test.want)
		}
	}
}
