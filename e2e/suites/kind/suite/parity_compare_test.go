package suite

import (
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
	"github.com/refvol/refvol/internal/must"
)

// generation is the name of the directory that holds one version of all files.
var generation = regexp.MustCompile(`^\.\.\d{4}_\d{2}_\d{2}_[\d_.]+$`)

// snapshot is what one volume shows, by path. The name of the current generation is
// GENERATION in paths and links, since it has the time in it.
type snapshot map[string]string

// snapshots returns what each volume of the pod shows, by the volume's name.
func (p *pod) snapshots(t *testing.T) map[string]snapshot {
	t.Helper()
	return must.Get(p.trySnapshots(t.Context()))(t)
}

// trySnapshots is snapshots for who may try again: it fails if a file goes meanwhile.
func (p *pod) trySnapshots(ctx context.Context) (map[string]snapshot, error) {
	entries, err := p.entries(ctx, mountDir)
	if err != nil {
		return nil, err
	}
	volumes := map[string][]answers.Entry{}
	for _, e := range entries {
		name, below, inside := strings.Cut(e.Path, "/")
		if e.Path == "." {
			continue
		}
		if e.Path = below; !inside {
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
func newSnapshot(entries []answers.Entry) snapshot {
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
		at := e.Path
		if current != "" {
			at, text = strings.ReplaceAll(at, current, "GENERATION"), strings.ReplaceAll(text, current, "GENERATION")
		}
		s[at] = text
	}
	return s
}

// snapshotOf returns what a volume with files of these texts shows, by their paths.
func snapshotOf(files object) snapshot {
	s := snapshot{".": "dir 0755 0:0", "..data": "link 0777 0:0 -> GENERATION", "GENERATION": "dir 0755 0:0"}
	for file, text := range files {
		s["GENERATION/"+file] = fmt.Sprintf("file 0644 0:0 = %q", text)
		for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
			s["GENERATION/"+dir] = "dir 0755 0:0"
		}
		first, _, _ := strings.Cut(file, "/")
		s[first] = "link 0777 0:0 -> ..data/" + first
	}
	return s
}

// Refvol's volume differs from the kubelet's on purpose in one thing. The kubelet's is an emptyDir, whose mode lets everybody write. Neither
// volume can be written to, and programs that refuse a directory which others may write to accept refvol's.
var (
	nativeRoot = regexp.MustCompile(`^dir [0-3]777 0:\d+$`)
	refvolRoot = regexp.MustCompile(`^dir [02]755 0:\d+$`)
)

// compare returns how two volumes differ that should not, sorted by path. What is missing is empty.
func compare(native, refvol snapshot) []string {
	all := maps.Clone(native)
	maps.Copy(all, refvol)
	var found []string
	for _, at := range slices.Sorted(maps.Keys(all)) {
		isKnown := at == "." && nativeRoot.MatchString(native[at]) && refvolRoot.MatchString(refvol[at])
		if native[at] != refvol[at] && !isKnown {
			found = append(found, fmt.Sprintf("%s: the kubelet's: %s; refvol's: %s", at, native[at], refvol[at]))
		}
	}
	return found
}
