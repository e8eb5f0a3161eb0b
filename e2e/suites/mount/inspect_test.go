package mount_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/mount"
)

func TestUsage(t *testing.T) {
	n := newNode(t)
	target := n.target("1")
	n.publish("v1", target)
	root, got, err := n.Open(n.ctx(), "v1", target)
	n.must(err)
	n.must(root.Close())
	// The root, the file and, since Linux 6.6, the root's attribute are used.
	free := int64(62)
	if !n.chargesAttributes() {
		free = 63
	}
	want := mount.Usage{
		Capacity: 64 << 10, Available: 60 << 10, Used: 4 << 10,
		Inodes: 65, InodesFree: free, InodesUsed: 65 - free,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	v := must.Get(n.Reopen(n.ctx(), "v1", target))(n)
	if got, err := v.Usage(); got != want || err != nil {
		t.Errorf("reopened: got %+v, %v, want %+v", got, err, want)
	}
	n.must(v.Close())
}

func TestList(t *testing.T) {
	n := newNode(t)
	if got, err := n.List(n.ctx()); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v; want none", got, err)
	}
	var want []mount.Mounted
	for _, pod := range []string{"1", "2", "with space"} {
		id := "v" + pod[:1]
		n.publish(id, n.target(pod))
		want = append(want, mount.Mounted{VolumeID: id, Target: n.target(pod)})
	}
	n.bind(n.target("2"), n.target("2")) // stacked
	n.mountForeign("tmpfs", n.target("foreign"))
	n.mountForeign("", n.target("no source"))
	n.mountForeign("csi.other.dev:v1", n.target("other driver"))
	n.bind(n.target("1"), n.outside)
	got, err := n.List(n.ctx())
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestListThroughALink(t *testing.T) {
	n := newNode(t)
	n.publish("v1", n.target("1"))
	link := n.outside + "/link"
	n.must(os.Symlink(n.kubeletDir, link))
	m := must.Get(mount.New(n.ctx(), mount.Options{Driver: driver, KubeletDir: link + "/"}))(n)
	target := link + strings.TrimPrefix(n.target("1"), n.kubeletDir)
	got, err := m.List(n.ctx())
	if want := []mount.Mounted{{VolumeID: "v1", Target: target}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	n.must(m.Check(n.ctx(), "v1", target))
	n.wantErr(m.Check(n.ctx(), "v1", n.target("1")), errOutside)
	n.must(m.Unmount(n.ctx(), "v1", target))
	n.wantGone(n.target("1"))
}

// The attributes of files are those that the kernel lets us set, and keeps.
func TestAttributePrefix(t *testing.T) {
	n := newNode(t)
	want := "trusted.refvol."
	if !harness.IsRoot() {
		want = "security.refvol."
	}
	v := n.create("v1")
	n.must(v.Root().WriteFile("file", nil, 0o644))
	n.must(v.Attach(n.ctx(), n.target("1")))
	path := n.target("1") + "/file"
	n.tamper(n.target("1"), func(root string) error { return unix.Setxattr(root+"/file", want+"refs", []byte("value"), 0) })
	buf := make([]byte, 64)
	size, err := unix.Getxattr(path, n.AttributePrefix()+"refs", buf)
	if err != nil || string(buf[:size]) != "value" {
		t.Errorf("read %q, %v", buf[:max(size, 0)], err)
	}
	n.wantErr(unix.Setxattr(path, want+"refs", []byte("x"), 0), unix.EROFS)
}

func TestUnknownSELinuxContext(t *testing.T) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		t.Fatal("not for a machine with SELinux: every tmpfs of these tests takes the policy's own context")
	}
	n := newNode(t)
	before := n.counts()
	_, err := mount.New(n.ctx(), mount.Options{Driver: driver, KubeletDir: n.kubeletDir, SELinuxContext: "no:such:context"})
	// The kernel says more than its error.
	if err == nil || !strings.Contains(err.Error(), "context=no:such:context") || !strings.Contains(err.Error(), "Unknown parameter 'context'") {
		t.Errorf("got %v, want an error that names the context, and the kernel's reason", err)
	}
	n.wantCounts(before)
}

// New must tell an operator what is missing, and open nothing for good.
func TestNewOnLesserKernels(t *testing.T) {
	if call := os.Getenv(denied); call != "" {
		t.Logf("the outer run covers this; %s is denied", call)
		return
	}
	const tooOld = "the kernel is too old: Linux 5.12 or newer is needed"
	for call, want := range map[string]string{
		denial(unix.SYS_OPENAT2, unix.ENOSYS):       tooOld,
		denial(unix.SYS_FSOPEN, unix.ENOSYS):        tooOld,
		denial(unix.SYS_MOUNT_SETATTR, unix.ENOSYS): tooOld,
		denial(unix.SYS_SETXATTR, unix.EOPNOTSUPP):  "extended attributes on tmpfs are needed (a kernel with CONFIG_TMPFS_XATTR): set attribute trusted.refvol.volume: operation not supported",
		denial(unix.SYS_FSOPEN, unix.EPERM):         "the capability CAP_SYS_ADMIN is needed",
	} {
		t.Run(want, func(t *testing.T) {
			out, err := rerun(t, call, "-test.run=^TestList$")
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("got %v, want %q in:\n%s", err, want, out)
			}
		})
	}
}

// rerun runs this binary again, in the same namespaces, with a system call denied.
func rerun(t *testing.T, call string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), denied+"="+call)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// What is mounted below the pods' directories reaches others if its mount has peers that it sends to.
func TestCheckPropagation(t *testing.T) {
	bindWith := func(path string, flags ...uintptr) func(n *node) {
		return func(n *node) {
			dir := n.kubeletDir + path
			n.bind(dir, dir)
			for _, flag := range flags {
				n.must(unix.Mount("", dir, "", flag, ""))
			}
		}
	}
	for name, tc := range map[string]struct {
		prepare func(n *node)
		shared  bool
	}{
		"private":                   {bindWith("/pods", unix.MS_PRIVATE), false},
		"shared":                    {bindWith("/pods", unix.MS_SHARED), true},
		"receives only":             {bindWith("/pods", unix.MS_SHARED, unix.MS_SLAVE), false},
		"unbindable":                {bindWith("/pods", unix.MS_UNBINDABLE), false},
		"shared, of a mount above":  {bindWith("", unix.MS_SHARED), true},
		"private, of a mount above": {bindWith("", unix.MS_PRIVATE), false},
		"private over shared":       {func(n *node) { bindWith("/pods", unix.MS_SHARED)(n); bindWith("/pods", unix.MS_PRIVATE)(n) }, false},
		"private below shared":      {func(n *node) { bindWith("", unix.MS_SHARED)(n); bindWith("/pods", unix.MS_PRIVATE)(n) }, false},
		"shared below private":      {func(n *node) { bindWith("", unix.MS_PRIVATE)(n); bindWith("/pods", unix.MS_SHARED)(n) }, true},
		"shared, no pods yet":       {func(n *node) { n.must(os.Remove(n.kubeletDir + "/pods")); bindWith("", unix.MS_SHARED)(n) }, true},
		"private, no pods yet":      {func(n *node) { n.must(os.Remove(n.kubeletDir + "/pods")); bindWith("", unix.MS_PRIVATE)(n) }, false},
		"shared, with a space in names": {func(n *node) {
			n.mkdir(n.kubeletDir + "/a b")
			bindWith("/a b")(n)
			bindWith("/pods", unix.MS_SHARED)(n)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			tc.prepare(n)
			before := n.counts()
			err := n.CheckPropagation()
			if _, listErr := n.List(n.ctx()); listErr != nil {
				t.Fatal(listErr)
			}
			if again := n.CheckPropagation(); fmt.Sprint(again) != fmt.Sprint(err) {
				t.Errorf("%v, and by the table that was listed %v", err, again)
			}
			switch {
			case tc.shared:
				n.must(err)
			case !errors.Is(err, mount.ErrNotShared) || !strings.Contains(err.Error(), "set mountPropagation: Bidirectional"):
				t.Errorf("got %v, want %v and what to set", err, mount.ErrNotShared)
			}
			n.wantCounts(before)
		})
	}
}
