package suite

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// sight is what of the node must be the same before and after the attacks.
type sight struct {
	// files are the directories of pods and of the plugin: each entry's description by its
	// path. What volumes show is not in it, nor what is in a hostile pod's own directory.
	files map[string]string
	// mounts are the node's.
	mounts []string
}

// look takes a sight of the node.
func (s *scene) look() sight {
	s.t.Helper()
	var seen sight
	eventually(s.t, podTimeout, "sight of the node", func(ctx context.Context) error {
		var err error
		seen, err = s.sight(ctx)
		return err
	})
	return seen
}

func (s *scene) sight(ctx context.Context) (sight, error) {
	seen := sight{files: map[string]string{}}
	for _, dir := range []string{s.paths.pods, s.paths.socket} {
		entries, err := s.inspector.entries(ctx, nodeRoot+dir)
		if err != nil {
			return seen, err
		}
		for _, e := range entries {
			at := path.Join(dir, e.Path)
			if !s.changesByItself(at) {
				seen.files[at] = fmt.Sprintf("%s %s %d:%d %s %x", e.Type, e.Mode, e.UID, e.GID, e.Link, sha256.Sum256(e.Content))
			}
		}
	}
	mounts, err := s.inspector.mountTable(ctx)
	for _, line := range mounts {
		// A subPath's mount outlives the generation that it is of.
		seen.mounts = append(seen.mounts, strings.ReplaceAll(line, "//deleted", ""))
	}
	return seen, err
}

// changesByItself tells whether what is at a path changes by the updates, or is a hostile
// pod's to change.
func (s *scene) changesByItself(at string) bool {
	if strings.Contains(at, "/volumes/kubernetes.io~projected/") {
		return true // the kubelet's, who renews tokens
	}
	for _, p := range s.pods() {
		changing := []string{s.onNode(p, "empty-dir", "scratch")}
		for _, volume := range hostileVolumes() {
			// Of a subPath the kubelet has a mount, which shows the file or directory itself.
			changing = append(changing, s.onNode(p, "csi", volume, "mount"), path.Join(s.paths.pods, string(p.UID), "volume-subpaths", volume, "probe"))
		}
		if slices.ContainsFunc(changing, func(dir string) bool { return within(dir, at) && dir != at }) {
			return true
		}
	}
	return false
}

// within tells whether a path is that of dir, or below.
func within(dir, at string) bool { return at == dir || strings.HasPrefix(at, dir+"/") }

// compare waits until the node is as it was, but for what pods have taken with them that
// are not of the scene.
func (s *scene) compare(before sight) {
	s.t.Helper()
	stays := []string{s.paths.socket}
	for _, p := range append(s.pods(), s.inspector) {
		stays = append(stays, path.Join(s.paths.pods, string(p.UID)))
	}
	var changes []string
	ctx, cancel := context.WithTimeout(s.t.Context(), podTimeout)
	defer cancel()
	err := poll(ctx, func(ctx context.Context) error {
		now, err := s.sight(ctx)
		if err != nil {
			return err
		}
		if changes = now.changes(before, stays); len(changes) > 0 {
			return errors.New("it changed")
		}
		return nil
	})
	if err != nil {
		s.t.Errorf("node as it was: %v; %d changes:\n  %s", err, len(changes), strings.Join(changes, "\n  "))
	}
}

// changes returns in words what there was not before, and what is gone from directories
// that stay.
func (now sight) changes(before sight, stays []string) []string {
	var changes []string
	for _, at := range slices.Sorted(maps.Keys(now.files)) {
		if was, is := before.files[at], now.files[at]; was != is {
			changes = append(changes, fmt.Sprintf("%s: was %q, is %q", at, was, is))
		}
	}
	for _, at := range slices.Sorted(maps.Keys(before.files)) {
		if _, is := now.files[at]; !is && slices.ContainsFunc(stays, func(dir string) bool { return within(dir, at) }) {
			changes = append(changes, at+": is gone")
		}
	}
	for _, line := range notIn(before.mounts, now.mounts) {
		changes = append(changes, "new mount "+line)
	}
	for _, dir := range stays {
		for _, line := range having(dir, notIn(now.mounts, before.mounts)) {
			changes = append(changes, "mount gone or changed: "+line)
		}
	}
	return changes
}

// unharmed checks that each volume has what the API server has, byte for byte, and
// nothing else: as the pods see it, and as the node does, where nobody can write to it.
func (s *scene) unharmed() {
	s.t.Helper()
	for _, p := range s.pods() {
		p.awaitOneGeneration(mountDir + "atomic")
		for _, volume := range hostileVolumes() {
			checkEntries(s.t, p.Name+" sees in "+volume, p.tree(mountDir+volume), showing(lastText))
			mount := s.onNode(p, "csi", volume, "mount")
			entries, err := s.inspector.entries(s.t.Context(), nodeRoot+mount)
			if err != nil {
				s.t.Error(err)
			}
			checkEntries(s.t, "the node sees in "+volume+" of "+p.Name, entries, showing(lastText))
			for _, file := range []string{"/key", "/..data/key", "/new"} {
				if got := s.inspector.probe("write", nodeRoot+mount+file, "changed"); got != "EROFS\n" {
					s.t.Errorf("the node's root writes %s of %s: %s", volume+file, p.Name, got)
				}
			}
			s.onlyReadOnly(p, volume)
		}
	}
	if got := s.honest.probe("read", mountDir+"canary/canary"); got != s.canary {
		s.t.Errorf("the canary is now %q", got)
	}
}

// onlyReadOnly checks that every mount of the volume, in whatever mount namespace, is
// read-only.
func (s *scene) onlyReadOnly(p *pod, volume string) {
	s.t.Helper()
	found, err := s.inspector.mounts(s.t.Context(), p.volumeID(volume))
	if err != nil {
		s.t.Error(err)
	}
	for _, m := range found {
		const options = 5 // the field of a line of mountinfo
		if fields := strings.Fields(m.Line); !slices.Contains(strings.Split(fields[options], ","), "ro") {
			s.t.Errorf("%s of %s is writable to %s: %s", volume, p.Name, m.Process, m.Line)
		}
	}
	if len(found) == 0 {
		s.t.Errorf("%s of %s is mounted nowhere", volume, p.Name)
	}
}
