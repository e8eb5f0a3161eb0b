package mount_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/must"
)

func TestVisibleMountIsReadOnly(t *testing.T) {
	n := newNode(t)
	target := n.target("1")
	v := n.create("v1")
	n.must(v.Root().WriteFile("version", []byte("1"), 0o666))
	n.must(v.Attach(n.ctx(), target))

	infos := n.mountsBelow(target)
	if len(infos) != 1 {
		t.Fatalf("got %d mounts, want 1", len(infos))
	}
	for _, flag := range []string{"ro", "nosuid", "nodev", "noexec"} {
		if !strings.Contains(","+infos[0].Options+",", ","+flag+",") {
			t.Errorf("the mount has options %s, want %s in it", infos[0].Options, flag)
		}
	}
	if infos[0].FSType != "tmpfs" || infos[0].Source != source("v1") || infos[0].Root != "/" {
		t.Errorf("got %+v", infos[0])
	}
	for name, err := range map[string]error{
		"write":             os.WriteFile(target+"/version", nil, 0o644),
		"make a file":       os.WriteFile(target+"/new", nil, 0o644),
		"remove":            os.Remove(target + "/version"),
		"chmod":             os.Chmod(target, 0o777),
		"write with a root": v.Root().WriteFile("version", nil, 0o644),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: got %v, want EROFS", name, err)
		}
	}
	n.must(v.Close())
	n.wantContent(target+"/version", "1")
}

func TestAttachRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(n *node, target string)
		target  func(n *node, target string) string
		want    error
		// stays says that there was something at the target, which stays.
		stays bool
	}{
		"parent missing":      {target: func(n *node, target string) string { return target + "/deeper/mount" }, want: fs.ErrNotExist},
		"file":                {prepare: func(n *node, target string) { n.write(target, "x") }, want: errForeign, stays: true},
		"directory with file": {prepare: func(n *node, target string) { n.mkdir(target); n.write(target+"/x", "x") }, want: errForeign, stays: true},
		"foreign mount":       {prepare: func(n *node, target string) { n.mountForeign("tmpfs", target) }, want: errForeign, stays: true},
		"other volume":        {prepare: func(n *node, target string) { n.publish("v2", target) }, want: errForeign, stays: true},
		"mounted already":     {prepare: func(n *node, target string) { n.publish("v1", target) }, want: fs.ErrExist, stays: true},
		"link":                {prepare: func(n *node, target string) { n.must(os.Symlink(n.outside, target)) }, want: errOutside, stays: true},
		"link to nothing":     {prepare: func(n *node, target string) { n.must(os.Symlink(n.outside+"/x", target)) }, want: errOutside, stays: true},
		"outside":             {target: func(n *node, _ string) string { return n.outside + "/mount" }, want: errOutside},
		"dots":                {target: func(n *node, _ string) string { return n.kubeletDir + "/../outside/mount" }, want: errOutside},
		"canceled":            {want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			if tc.prepare != nil {
				tc.prepare(n, target)
			}
			v := n.create("v1")
			before := n.counts()
			path := target
			if tc.target != nil {
				path = tc.target(n, target)
			}
			ctx, cancel := context.WithCancel(n.ctx())
			defer cancel()
			if errors.Is(tc.want, context.Canceled) {
				cancel()
			}
			n.wantErr(v.Attach(ctx, path), tc.want)
			n.wantCounts(before)
			if _, err := os.Lstat(path); (err == nil) != tc.stays {
				t.Errorf("lstat says %v; it should stay: %t", err, tc.stays)
			}
			n.wantEmpty(n.outside)

			// The failure is not the volume's: it can still be shown elsewhere.
			n.must(v.Attach(n.ctx(), n.target("2")))
		})
	}
}

func TestAttachBelowOtherMounts(t *testing.T) {
	n := newNode(t)
	n.mountForeign("other", n.kubeletDir+"/pods/1")
	target := n.target("1")
	n.mkdir(target) // left over
	n.publish("v1", target)
	n.must(n.Check(n.ctx(), "v1", target))
	n.must(n.update("v1", target, "2"))
	n.wantContent(target+"/version", "2")
	n.must(n.Unmount(n.ctx(), "v1", target))
	n.wantMounts(n.kubeletDir, "other")
}

func TestLimits(t *testing.T) {
	n := newNode(t)
	v := n.create("v1") // 64 KiB and 64 inodes, and one for the root's attribute
	if !n.chargesAttributes() {
		n.must(v.Root().WriteFile("spare", nil, 0o600))
	}
	n.must(v.Root().WriteFile("fits", make([]byte, 60<<10), 0o600))
	n.wantErr(v.Root().WriteFile("big", make([]byte, 8<<10), 0o600), unix.ENOSPC)
	n.must(v.Root().RemoveAll("big"))
	// The root directory and one file are there already.
	for i := range 62 {
		n.must(v.Root().WriteFile(fmt.Sprint(i), nil, 0o600))
	}
	n.wantErr(v.Root().WriteFile("62", nil, 0o600), unix.ENOSPC)
	n.wantErr(v.Root().Link("fits", "62"), unix.ENOSPC)
}

// TestOwnerAndMode: the root of a volume has the owner, the group and the mode that were asked for.
func TestOwnerAndMode(t *testing.T) {
	n := newNode(t)
	for i, want := range []struct {
		mode     fs.FileMode
		uid, gid int
	}{{0o755, 0, 0}, {0o750, 1000, 2000}, {0o775 | fs.ModeSetgid, 0, 2000}} {
		p := params(fmt.Sprint("v", i))
		p.Mode, p.UID, p.GID = want.mode, want.uid, want.gid
		v := must.Get(n.Create(n.ctx(), p))(n)
		info := must.Get(v.Root().Stat("."))(n)
		if got := info.Mode() &^ fs.ModeDir; got != want.mode {
			t.Errorf("mode %s, want %s", got, want.mode)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != want.uid || int(st.Gid) != want.gid {
			t.Errorf("owner %d:%d, want %d:%d", st.Uid, st.Gid, want.uid, want.gid)
		}
		n.must(v.Close())
	}
}
