package room

import (
	"os"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/pkg/volume"
)

const mebibyte = 1 << 20

func TestTheFileSystemHoldsTwoGenerations(t *testing.T) {
	for _, size := range []int64{1, pageSize, mebibyte, 32 * mebibyte, 1 << 40} {
		l := limitsFor(size)
		const root = 1
		if l.Bytes != size || l.MountBytes != 2*l.Bytes+64*int64(os.Getpagesize()) || l.MountInodes < 2*l.Inodes+root {
			t.Errorf("%d: %+v", size, l)
		}
		// The largest number of one-page files must not fail for lack of inodes: each needs one, and its link another.
		if files := size / pageSize; l.Inodes < 2*files+2 {
			t.Errorf("%d: %d inodes for %d files", size, l.Inodes, files)
		}
	}
}

// What is exactly as large as the limits is accepted, and nothing larger.
func TestAVolumeAtItsLimits(t *testing.T) {
	l := limitsFor(mebibyte)
	wantError(t, "a tree", l.CheckTree(l.Bytes, l.Inodes), "")
	wantError(t, "bytes", l.CheckTree(1052672, 6), "the files take 1052672 bytes of memory, more than the 1048576 bytes that a volume may have (--max-volume-size)")
	wantError(t, "inodes", l.CheckTree(0, 6002), "the files take 6002 inodes, more than the 2048 that a volume may have (they follow --max-volume-size)")
	wantError(t, "items", l.CheckItems(int(l.Files)), "")
	if memory, files := MemoryOf(mebibyte, 2), FilesOf(mebibyte); memory != mebibyte+2048 || files != 1024 {
		t.Errorf("two files take %d bytes, and a MiB has room for %d files", memory, files)
	}
}

// A volume that holds a little more than its files is not measured again and again.
func TestTheMarginOfOldFiles(t *testing.T) {
	const margin = mebibyte/4 + 64<<10
	for more, want := range map[int64]bool{0: false, margin: false, margin + 1: true} {
		v := New(mebibyte, mebibyte).Add("u")
		v.Need(mebibyte)
		v.Hold(mebibyte + more)
		if v.HoldsOld() != want {
			t.Errorf("with %d bytes more: %t", more, !want)
		}
	}
}

func wantError(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func TestCheckMemory(t *testing.T) {
	r := New(2*mebibyte, 32*mebibyte) // a pod's share is 4 MiB
	a, b, other := r.Add("a"), r.Add("a"), r.Add("other")
	a.Hold(mebibyte)
	a.Hold(3 * mebibyte)
	wantError(t, "what just fits beside the pod's other volume", b.CheckMemory(mebibyte), "")
	wantError(t, "a byte more", b.CheckMemory(mebibyte+1), "the pod's other volumes 3145728, together more than 4194304 (a pod's share")
	wantError(t, "another pod", other.CheckMemory(4*mebibyte), "")
	for range 7 {
		r.Add("many").Hold(4 * mebibyte)
	}
	wantError(t, "a volume does not count beside itself", a.CheckMemory(4*mebibyte), "")
	wantError(t, "a full node", other.CheckMemory(mebibyte+1), "the node's other volumes 32505856, together more than 33554432 (--max-total-size)")
	a.Remove()
	a.Remove()
	a.Hold(mebibyte)
	wantError(t, "a volume that was removed", other.CheckMemory(4*mebibyte), "")
	if got := r.Total(); got != 28*mebibyte {
		t.Errorf("%d bytes", got)
	}
	b.Remove()
	other.Remove()
	if len(r.pods) != 1 {
		t.Errorf("%d pods", len(r.pods))
	}
}

func TestCheckNames(t *testing.T) {
	const mib = int64(mebibyte)
	for _, test := range []struct {
		name       string
		volumeSize int64
		others, n  volume.Names
		want       string
	}{
		{"the most objects", mib, volume.Names{Objects: 768}, volume.Names{Objects: 256}, ""},
		{
			"too many objects", mib,
			volume.Names{Objects: 1000},
			volume.Names{Objects: 25},
			"Too many: the volume names 25 ConfigMaps and Secrets, the pod's other volumes 1000, and all volumes of a pod may name 1024: 24 are left; each counts once for each volume",
		},
		{"the most items", mib, volume.Names{Items: 8192}, volume.Names{Items: 8192}, ""},
		{
			"too many items", mib,
			volume.Names{Items: 8192},
			volume.Names{Items: 8193},
			"Too many: the volume names 8193 sources, items, variables and directories, the pod's other volumes 8192, and all volumes of a pod may name 16384: 8192 are left",
		},
		{"as many items as a large volume has files", 128 * mib, volume.Names{Items: 1}, volume.Names{Items: 32767}, ""},
		{"and no more", 128 * mib, volume.Names{Items: 2}, volume.Names{Items: 32767}, "may name 32768: 32766 are left"},
		{"the most bytes", mib, volume.Names{Bytes: mib}, volume.Names{Bytes: mib / 2, Added: 2*mib + mib/2}, ""},
		{
			"too many bytes", mib,
			volume.Names{Bytes: mib},
			volume.Names{Bytes: mib / 2, Added: 2*mib + mib/2 + 1},
			"Too many: the volume names 3145729 bytes of names and paths, the pod's other volumes 1048576, and all volumes of a pod may name 4194304: 3145728 are left; the path of a source",
		},
		{"directories that don't double the names", mib, volume.Names{Bytes: 3 * mib, Added: mib}, volume.Names{Bytes: 3 * mib, Added: 5 * mib}, ""},
		{"and those that do", mib, volume.Names{Bytes: 3 * mib, Added: mib}, volume.Names{Bytes: 3 * mib, Added: 5*mib + 1}, "may name 12582912"},
		{"nothing is left", mib, volume.Names{Objects: 2000}, volume.Names{Objects: 1}, "0 are left"},
	} {
		r := New(test.volumeSize, 1<<40)
		other, v := r.Add("p"), r.Add("p")
		r.Add("another").Name(volume.Names{Objects: 1024, Items: 16384, Bytes: 4 * mib})
		other.Name(test.others)
		wantError(t, test.name, v.CheckNames(test.n), test.want)
		v.Name(test.n) // it is mounted, by a plugin without this limit
		wantError(t, test.name+", again", v.CheckNames(test.n), "")
		if less := test.n.Minus(volume.Names{Objects: min(test.n.Objects, 1)}); v.CheckNames(less) != nil {
			t.Errorf("%s: it may not name less", test.name)
		}
		other.Remove()
		if got := r.pods["p"].names; got != test.n {
			t.Errorf("%s: %+v is counted for the pod", test.name, got)
		}
	}
}

func TestDocumentedLimits(t *testing.T) {
	doclines.Says(t, "../../docs/limits.md", map[int]string{8: "may hold an eighth of `--max-total-size`"}[podShare])
}
