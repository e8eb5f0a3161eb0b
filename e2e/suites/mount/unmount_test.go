package mount_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/refvol/refvol/internal/must"
)

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

// A directory of the pod and something else change places as fast as they can, while a volume is attached and unmounted by its path. Nothing
// happens outside, and a foreign mount is never unmounted.
func TestSwappedPath(t *testing.T) {
	for name, tc := range map[string]struct {
		// other makes what takes the place of dir, and returns its path.
		other   func(n *node, dir string) string
		refusal error
		stays   []string // mounts
	}{
		"a link out": {func(n *node, dir string) string {
			n.must(os.Symlink(n.outside, dir+"-link"))
			return dir + "-link"
		}, errOutside, nil},
		"a foreign mount": {func(n *node, _ string) string {
			n.mountForeign("foreign", n.target("2"))
			return filepath.Dir(n.target("2"))
		}, errForeign, []string{"foreign"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			dir := filepath.Dir(target)
			other := tc.other(n, dir)
			stop := n.again(func() {
				if err := swap(dir, other); err != nil {
					t.Errorf("swap: %v", err)
				}
			})
			done, refused := 0, 0
			for done < 30 || refused < 30 {
				v := must.Get(n.Create(n.ctx(), params("v1")))(n)
				err := v.Attach(n.ctx(), target)
				n.must(v.Close())
				switch {
				case err == nil:
					done++
					for err = n.Unmount(n.ctx(), "v1", target); errors.Is(err, tc.refusal); refused++ {
						err = n.Unmount(n.ctx(), "v1", target)
					}
					n.must(err)
				case errors.Is(err, tc.refusal):
					refused++
				default:
					t.Fatal(err)
				}
			}
			stop()
			n.wantEmpty(n.outside)
			n.wantMounts(n.outside)
			n.wantMounts(n.kubeletDir, tc.stays...)
		})
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
	f := must.Get(os.Open(target + "/version"))(n)
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
		for range 2 { // the second call finds nothing
			n.must(n.Unmount(n.ctx(), "v1", target))
			n.wantGone(target)
			n.wantErr(n.Check(n.ctx(), "v1", target), errNotMounted)
		}
	}
	for range 10 { // never shown
		v := n.create("v1")
		n.must(v.Root().WriteFile("version", []byte("1"), 0o644))
		n.must(v.Close())
		n.must(v.Close())
	}
	n.must(os.RemoveAll(n.kubeletDir + "/pods/1"))
	n.must(n.Unmount(n.ctx(), "v1", target))
	n.wantCounts(before)
}
