package mount_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/mount"
)

var (
	errNotMounted = mount.ErrNotMounted
	errForeign    = mount.ErrForeign
	errOutside    = mount.ErrOutside
)

// Whatever takes the place of the volume, nothing must be written to it.
func TestReopenOfWhatIsNotOurs(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(n *node, target string)
		check   error // what Check says; Reopen says ErrNotMounted too
	}{
		"unmounted behind our back": {func(n *node, target string) { n.publish("v1", target); n.umount(target) }, errNotMounted},
		"directory gone":            {func(n *node, target string) { n.publish("v1", target); n.umount(target); n.must(os.Remove(target)) }, errNotMounted},
		"pod gone":                  {func(n *node, target string) { n.must(os.RemoveAll(n.kubeletDir + "/pods/1")) }, errNotMounted},
		"never mounted":             {func(n *node, target string) { n.mkdir(target) }, errNotMounted},
		"file":                      {func(n *node, target string) { n.write(target, "") }, errNotMounted},
		"other volume":              {func(n *node, target string) { n.publish("v2", target) }, errForeign},
		"longer volume id":          {func(n *node, target string) { n.publish("v12", target) }, errForeign},
		"foreign tmpfs":             {func(n *node, target string) { n.mountForeign("tmpfs", target) }, errForeign},
		"tmpfs of another driver":   {func(n *node, target string) { n.mountForeign("csi.other.dev:v1", target) }, errForeign},
		"foreign over ours":         {func(n *node, target string) { n.publish("v1", target); n.mountForeign("tmpfs", target) }, errForeign},
		"ramfs with our source": {func(n *node, target string) {
			n.mkdir(target)
			n.must(unix.Mount(source("v1"), target, "ramfs", 0, ""))
		}, errForeign},
		"part of ours": {func(n *node, target string) {
			v := n.create("v1")
			n.must(v.Root().Mkdir("part", 0o755))
			n.must(v.Attach(n.ctx(), n.target("2")))
			n.mkdir(target)
			n.bind(n.target("2")+"/part", target)
		}, errForeign},
		"file of ours": {func(n *node, target string) {
			n.publish("v1", n.target("2"))
			n.write(target, "")
			n.bind(n.target("2")+"/version", target)
		}, errForeign},
		"directory of the node": {func(n *node, target string) { n.mkdir(target); n.bind(n.outside, target) }, errForeign},
		"link to ours": {func(n *node, target string) {
			n.publish("v1", n.target("2"))
			n.must(os.Symlink(n.target("2"), target))
		}, errOutside},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			tc.prepare(n, target)
			before := n.counts()

			n.wantErr(n.Check(n.ctx(), "v1", target), tc.check)
			_, _, err := n.Open(n.ctx(), "v1", target)
			n.wantErr(err, tc.check)
			err = n.update("v1", target, "leaked")
			n.wantErr(err, errNotMounted)
			n.wantErr(err, tc.check)

			n.wantCounts(before)
			n.wantNoLeak(target)
		})
	}
}

// wantNoLeak checks that nothing was written at target, nor below what is mounted there, nor outside.
func (n *node) wantNoLeak(target string) {
	n.Helper()
	for {
		if got, err := os.ReadFile(target + "/version"); err == nil && string(got) == "leaked" {
			n.Errorf("the content leaked to %s", target)
		}
		if unix.Unmount(target, unix.MNT_DETACH) != nil {
			break
		}
	}
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		n.wantEmpty(target)
	}
	n.wantEmpty(n.outside)
}

// The target changes between ours, a foreign mount and a bare directory as fast as it can; a write must reach ours or nothing.
func TestReopenRacesWithOtherMounts(t *testing.T) {
	n := newNode(t)
	ours, target := n.target("ours"), n.target("1")
	n.publish("v1", ours)
	n.mkdir(target)
	foreign := n.target("foreign")
	n.mountForeign("tmpfs", foreign)
	stop := n.again(func() {
		for _, from := range []string{ours, foreign} {
			if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
				t.Errorf("bind %s: %v", from, err)
			}
			if from == ours {
				// The foreign one comes over ours, too.
				if err := errors.Join(unix.Mount(foreign, target, "", unix.MS_BIND, ""), unix.Unmount(target, unix.MNT_DETACH)); err != nil {
					t.Error(err)
				}
			}
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				t.Errorf("umount: %v", err)
			}
		}
	})
	wrote, refused := 0, 0
	for wrote < 50 || refused < 50 {
		switch err := n.update("v1", target, "leaked"); {
		case err == nil:
			wrote++
		case errors.Is(err, errNotMounted):
			refused++
		case errors.Is(err, unix.EINVAL):
			// It was unmounted between the proof and the clone.
		default:
			t.Fatal(err)
		}
	}
	stop()
	n.wantContent(ours+"/version", "leaked")
	n.wantEmpty(target)
	n.wantEmpty(foreign)
}

// A handle that is kept must notice when its volume is mounted there no more.
func TestStillAt(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(n *node, target string)
		want   bool
	}{
		"as it was":             {func(*node, string) {}, true},
		"mounted a second time": {func(n *node, target string) { n.bind(target, target) }, true},
		"unmounted":             {func(n *node, target string) { n.umount(target) }, false},
		"directory gone":        {func(n *node, target string) { n.umount(target); n.must(os.Remove(target)) }, false},
		"another volume":        {func(n *node, target string) { n.umount(target); n.publish("v2", target) }, false},
		"the volume anew":       {func(n *node, target string) { n.umount(target); n.must(os.Remove(target)); n.publish("v1", target) }, false},
		"foreign over ours":     {func(n *node, target string) { n.mountForeign("tmpfs", target) }, false},
		"link to ours": {func(n *node, target string) {
			n.must(os.MkdirAll(n.target("2"), 0o755))
			n.bind(target, n.target("2"))
			n.umount(target)
			n.must(os.Remove(target))
			n.must(os.Symlink(n.target("2"), target))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			n.publish("v1", target)
			v := must.Get(n.Reopen(n.ctx(), "v1", target))(n)
			tc.change(n, target)
			if got := v.IsMountedAt(target); got != tc.want {
				t.Errorf("IsMountedAt = %t", got)
			}
			n.must(v.Close())
		})
	}
}
