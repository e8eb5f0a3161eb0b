package mount_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestUnmountTwice(t *testing.T) {
	n := newNode(t)
	before := n.counts()
	target := n.target("1")
	n.publish("v1", target)
	for range 2 {
		n.must(n.Unmount(n.ctx(), "v1", target))
		n.wantGone(target)
		n.wantErr(n.Check(n.ctx(), "v1", target), errNotMounted)
	}
	n.must(os.RemoveAll(n.kubeletDir + "/pods/1"))
	n.must(n.Unmount(n.ctx(), "v1", target))
	n.wantCounts(before)
}

func TestUnmountLeavesOthersAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(n *node, target string)
		want    error
		mounts  []string
	}{
		"foreign":           {func(n *node, target string) { n.mountForeign("tmpfs", target) }, errForeign, []string{"tmpfs"}},
		"other volume":      {func(n *node, target string) { n.publish("v2", target) }, errForeign, []string{source("v2")}},
		"foreign over ours": {func(n *node, target string) { n.publish("v1", target); n.mountForeign("tmpfs", target) }, errForeign, []string{source("v1"), "tmpfs"}},
		"ours over foreign": {func(n *node, target string) {
			n.publish("v1", n.target("2"))
			n.mountForeign("tmpfs", target)
			n.bind(n.target("2"), target)
		}, errForeign, []string{"tmpfs"}},
		"ours over files": {func(n *node, target string) {
			n.publish("v1", n.target("2"))
			n.mkdir(target + "/data")
			n.bind(n.target("2"), target)
		}, errForeign, nil},
		"files": {func(n *node, target string) { n.mkdir(target + "/data") }, errForeign, nil},
		"link": {func(n *node, target string) {
			n.publish("v1", n.target("2"))
			n.must(os.Symlink(n.target("2"), target))
		}, errOutside, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			tc.prepare(n, target)
			n.wantErr(n.Unmount(n.ctx(), "v1", target), tc.want)
			n.wantMounts(target, tc.mounts...)
			if _, err := os.Lstat(target); err != nil {
				t.Errorf("the target is gone: %v", err)
			}
		})
	}
}

// Two directories change places, so that the path leads now to ours, now to a foreign mount; the foreign one must never be unmounted.
func TestUnmountRacesWithASwappedPath(t *testing.T) {
	n := newNode(t)
	target, foreign := n.target("1"), n.target("2")
	n.mountForeign("foreign", foreign)
	a, b := filepath.Dir(target), filepath.Dir(foreign)
	stop := n.again(func() {
		if err := swap(a, b); err != nil {
			t.Errorf("swap: %v", err)
		}
	})
	done, refused := 0, 0
	for done < 30 || refused < 30 {
		v, err := n.Create(n.ctx(), params("v1"))
		n.must(err)
		err = v.Attach(n.ctx(), target)
		n.must(v.Close())
		if err == nil {
			err = n.Unmount(n.ctx(), "v1", target)
		}
		switch {
		case err == nil:
			done++
		case errors.Is(err, errForeign):
			refused++
		case errors.Is(err, os.ErrExist): // left by an Unmount that met the foreign one
		default:
			t.Fatal(err)
		}
		for _, path := range []string{target, foreign} {
			if err := n.Unmount(n.ctx(), "v1", path); err != nil && !errors.Is(err, errForeign) {
				t.Fatal(err)
			}
		}
	}
	stop()
	count := 0
	for _, info := range n.mountsBelow(n.kubeletDir) {
		if info.Source == "foreign" {
			count++
		}
	}
	if count != 1 {
		t.Errorf("the foreign mount is there %d times, want once", count)
	}
}

// A process that has a file open, and a container that has the volume mounted, keep it until they end.
func TestUnmountUnderReaders(t *testing.T) {
	n := newNode(t)
	target := n.target("1")
	n.publish("v1", target)
	container := n.outside + "/container"
	n.mkdir(container)
	n.bind(target, container)
	f, err := os.Open(target + "/version")
	n.must(err)
	defer f.Close()

	n.must(n.Unmount(n.ctx(), "v1", target))
	n.wantGone(target)
	content, err := io.ReadAll(f)
	if err != nil || string(content) != "1" {
		t.Errorf("the open file has %q, %v", content, err)
	}
	n.wantContent(container+"/version", "1")
}

func TestManyVolumesLeaveNothing(t *testing.T) {
	n := newNode(t)
	target := n.target("1")
	before := n.counts()
	for range 100 {
		n.publish("v1", target)
		n.must(n.update("v1", target, "2"))
		n.must(n.Check(n.ctx(), "v1", target))
		n.must(n.Unmount(n.ctx(), "v1", target))
	}
	for range 10 { // never shown
		v := n.create("v1")
		n.must(v.Root().WriteFile("version", []byte("1"), 0o644))
		n.must(v.Close())
		n.must(v.Close())
	}
	n.wantCounts(before)
	n.wantGone(target)
}
