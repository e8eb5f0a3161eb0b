// Package golden_test proves that this build takes over the volumes of earlier ones. testdata has a volume of each kind, as
// the build that was the first to have that kind has left it on a node: files, links, modes, owners and extended attributes.
// None of them ever changes: that would be a format which earlier plugins have not written.
package golden_test

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
)

func TestGoldenVolumes(t *testing.T) {
	files := must.Get(filepath.Glob("testdata/*.json"))(t)
	if len(files) == 0 {
		t.Fatal("testdata has no volumes")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			g := load(t, file)
			if g.Tree == nil {
				if !*update {
					t.Fatal("the volume has no tree yet: write it with -update (CONTRIBUTING.md)")
				}
				g.write(t)
				g.save(t, file)
			}
			testTakeover(t, g)
		})
	}
}

// testTakeover has a plugin find the volume, keep it as it is while nothing changes, change it, and unpublish it.
func testTakeover(t *testing.T, g *golden) {
	n := newNode(t, g)
	g.build(t, n.target)
	before := look(t, n.target)
	n.start()
	n.eventually(func() error {
		return errors.Join(n.shows(g.Objects, g.Condition, g.Refused...), n.isPruned(), n.hasReceipts(), n.hasResynced())
	})
	n.wantUntouched(before)

	changed := maps.Clone(g.Objects)
	maps.Copy(changed, g.Change)
	n.objects.set(changed)
	n.eventually(func() error { return n.isChanged(changed) })
	n.unpublish()
}

// hasResynced returns nil once objects were asked for again, and compared with the files. Those of a pinned volume never are.
func (n *node) hasResynced() error {
	if resyncs := n.objects.resyncs.Load(); resyncs < 2 && n.g.Condition != publisher.ConditionPinned {
		return fmt.Errorf("%d resyncs", resyncs)
	}
	return nil
}

// hasReceipts returns nil once the receipts are read, with the times that the files have.
func (n *node) hasReceipts() error {
	v := n.status()
	for name, want := range n.g.Receipts {
		o := v.Opened[refOf(name)]
		if o == nil || o.State != want {
			return fmt.Errorf("receipts of %s: %+v, want %s", name, o, want)
		}
		saysSo := func(e entry) bool { return e.Attributes[trusted+"opened"] == o.At.UTC().Format(time.RFC3339Nano) }
		if want == opened.Yes && !slices.ContainsFunc(n.g.Tree, saysSo) {
			return fmt.Errorf("%s was opened at %s, which no file says", name, o.At)
		}
	}
	return nil
}

// wantUntouched checks that all that was there before is as it was, but for a superseded generation.
func (n *node) wantUntouched(before []entry) {
	n.Helper()
	if changed := n.writes.changed.Load(); changed > 0 {
		n.Errorf("%d writes changed files, though no object has changed", changed)
	}
	was, is := identities(before, n.g.Superseded), identities(look(n.T, n.target), n.g.Superseded)
	for path, want := range was {
		if got := is[path]; got != want && !n.g.isSuperseded(path) {
			n.Errorf("%s was touched:\nwas %s\nis  %s", path, want, got)
		}
	}
	for path := range is {
		if was[path] == "" {
			n.Errorf("%s is new", path)
		}
	}
}

// isSuperseded says whether a path is in a generation that the volume does not show any more.
func (g *golden) isSuperseded(path string) bool {
	i := slices.IndexFunc(g.Tree, func(e entry) bool { return e.Path == "..data" })
	return strings.HasPrefix(path, "..2") && !strings.HasPrefix(path, g.Tree[i].Link)
}

// isChanged returns nil once the files show what comes after the change.
func (n *node) isChanged(s state) error {
	for path, want := range n.g.Then {
		got, err := os.ReadFile(filepath.Join(n.target, path))
		switch {
		case want == nil && errors.Is(err, fs.ErrNotExist):
		case want == nil:
			return fmt.Errorf("%s is still there", path)
		case err != nil:
			return err
		case string(got) != *want:
			return fmt.Errorf("%s has %q, want %q", path, got, *want)
		}
	}
	if n.g.Condition == publisher.ConditionPinned {
		return nil
	}
	return n.shows(s, publisher.ConditionCurrent)
}

// write has this build write the volume, and takes it in as it leaves it on a node.
func (g *golden) write(t *testing.T) {
	t.Helper()
	if !harness.IsRoot() {
		t.Fatal("the attributes of a user namespace are not those of a node: -update needs root")
	}
	g.VolumeID = fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(g.Pod.UID)+g.Name))) // as the kubelet names it
	n := newNode(t, g)
	n.start()
	states := append(g.Before, g.Objects)
	n.objects.set(states[0])
	must.Do(t, n.p.Publish(n.ctx(), binding.Request{
		VolumeID: g.VolumeID, Target: n.target, Pod: g.Pod, Attributes: g.Attributes, ReadOnly: true, FSGroup: g.FSGroup,
	}))
	for _, s := range states {
		n.objects.set(s)
		n.eventually(func() error { return n.shows(s, "") })
	}
	if len(g.Refused) > 0 {
		n.objects.set(g.Objects, g.Refused...)
	}
	n.eventually(func() error { return n.shows(g.Objects, g.Condition, g.Refused...) })
	for _, path := range g.Opened {
		must.Do(t, n.opens.Open(filepath.Join(n.target, path)))
	}
	must.Do(t, n.opens.Drain(0))
	if !g.Superseded {
		n.eventually(func() error { return errors.Join(n.isPruned(), n.hasSaved(g.Opened)) })
	}
	g.Tree = look(t, n.target)
	for i, e := range g.Tree {
		if e.Same != "" {
			g.Tree[i] = entry{Path: e.Path, Mode: e.Mode, Same: e.Same}
		}
	}
	n.unpublish()
}

// hasSaved returns nil once files have their receipts.
func (n *node) hasSaved(paths []string) error {
	for _, path := range paths {
		e := entry{}
		file, err := filepath.EvalSymlinks(filepath.Join(n.target, path))
		if err == nil {
			err = e.read(file)
		}
		if err != nil || e.Attributes[trusted+"opened"] == "" {
			return fmt.Errorf("%s has no receipt: %w", path, err)
		}
	}
	return nil
}

var update = flag.Bool("update", false, "write the tree of each volume in testdata that has none yet")

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil { // the tests mostly wait; -parallel beats it
		panic(err)
	}
	os.Exit(harness.Main(m, nil))
}
