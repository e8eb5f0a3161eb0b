package suite

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// snapshot is what one volume shows, by path. The name of the current generation is
// GENERATION in paths and links, since it has the time in it.
type snapshot map[string]string

// snapshots returns what each volume of the pod shows, by the volume's name.
func (p *pod) snapshots(t *testing.T) map[string]snapshot {
	t.Helper()
	got, err := p.trySnapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// trySnapshots is snapshots for who may try again: it fails if a file goes meanwhile.
func (p *pod) trySnapshots(ctx context.Context) (map[string]snapshot, error) {
	entries, err := p.entries(ctx, mountDir)
	if err != nil {
		return nil, err
	}
	volumes := map[string][]entry{}
	for _, e := range entries {
		name, path, inside := strings.Cut(e.Path, "/")
		if e.Path == "." {
			continue
		}
		if e.Path = path; !inside {
			e.Path = "."
		}
		volumes[name] = append(volumes[name], e)
	}
	result := map[string]snapshot{}
	for name, entries := range volumes {
		result[name] = newSnapshot(entries)
	}
	return result, nil
}

// newSnapshot takes the entries of one volume, with paths from its root.
func newSnapshot(entries []entry) snapshot {
	current := ""
	for _, e := range entries {
		if e.Path == "..data" && generation.MatchString(e.Link) {
			current = e.Link
		}
	}
	s := snapshot{}
	for _, e := range entries {
		if e.Type == "link" {
			e.UID = 0 // the kubelet's is that of one of its files, since 1.37; nobody is let in by it
		}
		text := fmt.Sprintf("%s %s %d:%d", e.Type, e.Mode, e.UID, e.GID)
		switch {
		case e.Denied:
			text += " denied"
		case e.Type == "link":
			text += " -> " + e.Link
		case e.Type == "file":
			text += fmt.Sprintf(" = %q", e.Content)
		}
		path := e.Path
		if current != "" {
			path, text = strings.ReplaceAll(path, current, "GENERATION"), strings.ReplaceAll(text, current, "GENERATION")
		}
		s[path] = text
	}
	return s
}

// difference is one path of which two volumes show different things. What is missing
// is empty.
type difference struct{ path, native, refvol string }

func (d difference) String() string {
	return fmt.Sprintf("%s: the kubelet's: %s; refvol's: %s", d.path, d.native, d.refvol)
}

// Refvol's volume differs from the kubelet's on purpose in one thing. The kubelet's is an emptyDir, whose mode lets everybody write. Neither
// volume can be written to, and programs that refuse a directory which others may write to accept refvol's.
var (
	nativeRoot = regexp.MustCompile(`^dir [0-3]777 0:\d+$`)
	refvolRoot = regexp.MustCompile(`^dir [02]755 0:\d+$`)
)

// compare returns how two volumes differ that should not, sorted by path.
func compare(native, refvol snapshot) []difference {
	paths := maps.Clone(native)
	maps.Copy(paths, refvol)
	var found []difference
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		isKnown := path == "." && nativeRoot.MatchString(native[path]) && refvolRoot.MatchString(refvol[path])
		if native[path] != refvol[path] && !isKnown {
			found = append(found, difference{path, native[path], refvol[path]})
		}
	}
	return found
}
