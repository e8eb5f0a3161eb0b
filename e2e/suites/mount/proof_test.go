package mount_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/mount"
)

// attribute returns the name of the attribute that proves a mount.
func (n *node) attribute() string { return n.AttributePrefix() + "volume" }

// tamper calls do with a writable path to the root of what is mounted at target, as somebody with CAP_SYS_ADMIN in a container has it.
func (n *node) tamper(target string, do func(root string) error) {
	n.Helper()
	n.must(harness.ChangeVolume(target, do))
}

// tampered are the ways in which the attribute of v1 can be wrong.
func tampered(n *node) map[string]func(root string) error {
	set := func(value string) func(string) error {
		return func(root string) error { return unix.Setxattr(root, n.attribute(), []byte(value), 0) }
	}
	return map[string]func(string) error{
		"removed":             func(root string) error { return unix.Removexattr(root, n.attribute()) },
		"empty":               set(""),
		"of another volume":   set(source("v2")),
		"of another driver":   set("csi.other.dev:v1"),
		"a prefix":            set(source("v")),
		"longer":              set(source("v1") + "1"),
		"ended by a NUL":      set(source("v1") + "\x00"),
		"with a NUL":          set(source("v1") + "\x00" + strings.Repeat("x", 200)),
		"as long as allowed":  set(strings.Repeat("x", 255)),
		"longer than allowed": set(source("v1") + strings.Repeat("x", 256)),
		"very long":           set(strings.Repeat("\xff", 32<<10)),
		"line feeds":          set("\n" + source("v1") + "\n"),
	}
}

// Whoever changes the attribute of a volume takes the proof from that volume and nothing from another; its mount still goes with its pod.
func TestTamperedAttribute(t *testing.T) {
	for name := range tampered(&node{Mounter: new(mount.Mounter)}) {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target, other := n.target("1"), n.target("2")
			n.publish("v1", target)
			n.publish("v2", other)
			before := n.counts()
			n.tamper(target, tampered(n)[name])

			n.wantErr(n.Check(n.ctx(), "v1", target), errForeign)
			_, _, err := n.Open(n.ctx(), "v1", target)
			n.wantErr(err, errForeign)
			err = n.update("v1", target, "2")
			n.wantErr(err, errNotMounted)
			n.wantErr(err, errForeign)
			n.wantContent(target+"/version", "1")
			n.wantErr(n.create("v1").Attach(n.ctx(), target), errForeign)
			want := []mount.Mounted{{VolumeID: "v1", Target: target}, {VolumeID: "v2", Target: other}}
			if got, err := n.List(n.ctx()); err != nil || !slices.Equal(got, want) {
				t.Errorf("List: got %v, %v; want %v", got, err, want)
			}
			n.must(n.Check(n.ctx(), "v2", other))
			n.must(n.Unmount(n.ctx(), "v1", target))
			n.wantGone(target)
			n.must(n.Check(n.ctx(), "v2", other))
			n.must(n.update("v2", other, "2"))
			n.wantMounts(n.kubeletDir, source("v2"))
			n.must(n.Unmount(n.ctx(), "v2", other))
			n.wantCounts([2]int{before[0] + 2, before[1] - 2}) // the volume that was never attached is open
		})
	}
}

// mountWithout mounts a volume without the attribute.
func (n *node) mountWithout(id, target, options string) {
	n.Helper()
	n.mkdir(target)
	err := unix.Mount(source(id), target, "tmpfs", 0, options+",noswap")
	if errors.Is(err, unix.EINVAL) { // no such option here
		err = unix.Mount(source(id), target, "tmpfs", 0, options)
	}
	n.must(err)
	n.write(target+"/version", "1")
	n.must(unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
}

// A stack of such mounts goes too, whichever of them have the attribute.
func TestUnmountOfAStackWithAndWithout(t *testing.T) {
	n := newNode(t)
	target := n.target("1")
	n.publish("v1", target)
	n.mountWithout("v1", target, "size=64k")
	n.bind(target, target)
	n.publish("v1", n.target("2"))
	n.bind(n.target("2"), target)
	n.mountWithout("v1", target, "size=64k")
	n.must(n.Unmount(n.ctx(), "v1", target))
	n.wantMounts(target)
	n.wantGone(target)
}

// All but a start, and the unmount of a volume without the attribute, works without the mount table, whose length others decide.
func TestMountTableIsNotRead(t *testing.T) {
	n := newNode(t)
	target, without := n.target("1"), n.target("2")
	n.mountWithout("v2", without, "size=64k")
	n.write(n.outside+"/table", "not a mount table\n")
	n.bind(n.outside+"/table", "/proc/self/mountinfo")
	defer n.umount("/proc/self/mountinfo")

	// What needs the table finds nothing in this one.
	if got, err := n.List(n.ctx()); err != nil || len(got) != 0 {
		t.Fatalf("List found %v, %v: the mount table is not covered", got, err)
	}
	n.wantErr(n.Unmount(n.ctx(), "v2", without), errForeign)

	n.publish("v1", target)
	n.must(n.Check(n.ctx(), "v1", target))
	root, _, err := n.Open(n.ctx(), "v1", target)
	n.must(err)
	n.must(root.Close())
	n.must(must.Get(n.Reopen(n.ctx(), "v1", target))(n).Close())
	n.must(n.Unmount(n.ctx(), "v1", target))
	n.wantGone(target)
}

// Without an answer nothing is known of the mount: a volume is not given up for that, nor unmounted.
func TestNoAnswerIsNoProof(t *testing.T) {
	noAnswer := denial(unix.SYS_GETXATTR, unix.EIO) // plays a kernel that doesn't tell an attribute
	if os.Getenv(denied) != noAnswer {
		if out, err := rerun(t, noAnswer, "-test.v", "-test.run=^TestNoAnswerIsNoProof$"); err != nil || !strings.Contains(out, "--- PASS: TestNoAnswer") {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	n := newNode(t)
	target := n.target("1")
	n.publish("v1", target)
	before := n.counts()
	_, _, openErr := n.Open(n.ctx(), "v1", target)
	for name, err := range map[string]error{
		"Check":   n.Check(n.ctx(), "v1", target),
		"Open":    openErr,
		"Reopen":  n.update("v1", target, "2"),
		"Unmount": n.Unmount(n.ctx(), "v1", target),
	} {
		if !errors.Is(err, unix.EIO) || errors.Is(err, errNotMounted) || errors.Is(err, errForeign) {
			t.Errorf("%s: got %v, want %v alone", name, err, unix.EIO)
		}
	}
	n.wantMounts(target, source("v1"))
	n.wantContent(target+"/version", "1")
	n.wantCounts(before)
}
