package mount_test

import (
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// noFspick plays a kernel, or a sandbox, that lets no mount be reconfigured.
const noFspick = "fspick=EPERM"

// own is how many inodes the Mounter adds, for the attribute of the root directory.
const own = 1

// grow asks for so many bytes and inodes through a reopened volume.
func (n *node) grow(id, target string, size, inodes int64) error {
	n.Helper()
	v, err := n.Reopen(n.ctx(), id, target)
	n.must(err)
	defer v.Close()
	return v.Grow(n.ctx(), size, inodes)
}

// limits returns how many bytes and inodes the mount at target may hold.
func (n *node) limits(target string) (size, inodes int64) {
	n.Helper()
	var st unix.Statfs_t
	n.must(unix.Statfs(target, &st))
	return int64(st.Blocks) * st.Bsize, int64(st.Files)
}

func (n *node) wantLimits(target string, size, inodes int64) {
	n.Helper()
	if gotSize, gotInodes := n.limits(target); gotSize != size || gotInodes != inodes {
		n.Errorf("the mount holds %d bytes and %d inodes, want %d and %d", gotSize, gotInodes, size, inodes)
	}
}

// limitsOption matches the options that Grow changes.
var limitsOption = regexp.MustCompile(`(size|nr_inodes)=[^, ]*`)

// described returns the line of the mount table about target, without its limits.
func (n *node) described(target string) string {
	n.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	n.must(err)
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " "+target+" ") {
			return limitsOption.ReplaceAllString(line, "$1")
		}
	}
	n.Fatalf("nothing is mounted at %s", target)
	return ""
}

// Both limits go up at once, and nothing else of the mount changes.
func TestGrow(t *testing.T) {
	n := newNode(t)
	target := n.target("1")
	p := params("v1")
	p.Mode = 0o750
	if !userNamespace(t) {
		p.UID, p.GID = 1234, 2345
	}
	created, err := n.Create(n.ctx(), p)
	n.must(err)
	n.must(created.Root().WriteFile("version", []byte("1"), 0o644))
	n.must(created.Attach(n.ctx(), target))
	n.must(created.Close())
	n.wantLimits(target, 64<<10, 64+own)
	before, described, root := n.counts(), n.described(target), n.stat(target)

	n.must(n.grow("v1", target, 256<<10, 200))
	n.wantLimits(target, 256<<10, 200+own)
	if got := n.described(target); got != described {
		t.Errorf("the mount is described as\n%s\nand was\n%s", got, described)
	}
	if got := n.stat(target); got.Mode != root.Mode || got.Uid != root.Uid || got.Gid != root.Gid {
		t.Errorf("the root has mode %o and owner %d:%d, had %o and %d:%d", got.Mode, got.Uid, got.Gid, root.Mode, root.Uid, root.Gid)
	}
	n.wantErr(os.WriteFile(target+"/version", nil, 0o644), unix.EROFS)
	n.must(n.update("v1", target, strings.Repeat("x", 200<<10)))
	n.wantContent(target+"/version", strings.Repeat("x", 200<<10))
	n.wantCounts(before)
}

// A limit that is larger than what is asked for stays, whatever becomes of the other.
func TestGrowNeverShrinks(t *testing.T) {
	const size, inodes = 64 << 10, 64
	for name, tc := range map[string]struct{ size, inodes, wantSize, wantInodes int64 }{
		"the same":           {size, inodes, size, inodes},
		"less":               {4096, 8, size, inodes},
		"bytes only":         {2 * size, 8, 2 * size, inodes},
		"inodes only":        {4096, 2 * inodes, size, 2 * inodes},
		"part of a page":     {size + 1, inodes, size + int64(os.Getpagesize()), inodes},
		"part of the last":   {size - 1, inodes, size, inodes},
		"more than there is": {1 << 60, 1 << 50, 1 << 60, 1 << 50},
		"no limit is no ask": {0, 0, size, inodes},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			n.publish("v1", target)
			n.must(n.grow("v1", target, tc.size, tc.inodes))
			n.wantLimits(target, tc.wantSize, tc.wantInodes+own)
			n.must(n.grow("v1", target, tc.size, tc.inodes))
			n.wantLimits(target, tc.wantSize, tc.wantInodes+own)
		})
	}
}

// noReconfigure plays a kernel that refuses what a tmpfs shall become.
const noReconfigure = "reconfigure=EINVAL"

// What the kernel refuses leaves the volume as it was, and writable. Linux refuses a number
// of inodes since 6.6; on an older one only the played refusal is tested.
func TestGrowRefused(t *testing.T) {
	inodes, what := int64(math.MaxInt64), "set nr_inodes=9223372036854775807 of a tmpfs: "
	if os.Getenv(denied) == noReconfigure {
		inodes, what = 128, "reconfigure a tmpfs: "
	} else {
		if out, err := rerun(t, noReconfigure, "-test.v", "-test.run=^TestGrowRefused$"); err != nil || !strings.Contains(out, "--- PASS: TestGrowRefused") {
			t.Errorf("%v:\n%s", err, out)
		}
		if takes(t, "nr_inodes=9223372036854775807") {
			return
		}
	}
	n := newNode(t)
	target := n.target("1")
	n.publish("v1", target)
	v, err := n.Reopen(n.ctx(), "v1", target)
	n.must(err)
	defer v.Close()
	err = v.Grow(n.ctx(), 128<<10, inodes)
	n.wantErr(err, unix.EINVAL)
	if err != nil && !strings.Contains(err.Error(), "volume v1: grow: "+what) {
		t.Errorf("got %v, want an error that names what was refused: %s", err, what)
	}
	n.wantLimits(target, 64<<10, 64+own)
	n.must(v.Root().WriteFile("version", []byte("2"), 0o644))
	n.wantContent(target+"/version", "2")
	n.must(v.Close())
	n.wantErr(v.Grow(n.ctx(), 1, 1), os.ErrClosed)
}

// Where nothing has to grow, fspick is not even called.
func TestGrowAsksOnlyWhereItMust(t *testing.T) {
	if os.Getenv(denied) != noFspick {
		if out, err := rerun(t, noFspick, "-test.v", "-test.run=^TestGrowAsksOnlyWhereItMust$"); err != nil || !strings.Contains(out, "--- PASS: TestGrowAsks") {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	n := newNode(t)
	target := n.target("1")
	n.publish("v1", target)
	n.must(n.grow("v1", target, 64<<10, 64))
	n.wantErr(n.grow("v1", target, 128<<10, 64), unix.EPERM)
	n.wantErr(n.grow("v1", target, 64<<10, 65), unix.EPERM)
	n.wantLimits(target, 64<<10, 64+own)
	n.must(n.update("v1", target, "2"))
	n.wantContent(target+"/version", "2")
}
