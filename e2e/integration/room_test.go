package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/refvol/refvol/e2e/harness"
)

// afterCause is how soon a volume must be current once what kept it from that is gone.
// It is more than the plugin's longest pause between two tries.
const afterCause = soon

// hold opens every file of the present generation, as readers do, so that its pages and
// inodes stay when its names go. The returned function closes them; it is idempotent.
func hold(t *testing.T, dir string) (release func()) {
	t.Helper()
	generation, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close()
		}
		held = nil
	}
	t.Cleanup(release)
	err = filepath.WalkDir(generation, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		f, err := os.Open(path)
		held = append(held, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// fillByReaders changes a volume's object to next(0), next(1)... with a reader that
// holds each generation, until the volume is told to be full. It returns the number of
// the generation that shows, and what lets the readers go.
func (n *node) fillByReaders(v *harness.Volume, object string, next func(i int) map[string]string, shows func(i int) error) (last int, release func()) {
	n.t.Helper()
	var releases []func()
	release = func() {
		for _, f := range releases {
			f()
		}
	}
	for i := 0; ; i++ {
		if i == 32 {
			n.t.Fatal("32 generations are held open and the volume is not full")
		}
		releases = append(releases, hold(n.t, n.Target(v)))
		n.configMap(object, next(i))
		full := false
		harness.Eventually(n.t, soon, func() error {
			err := shows(i)
			problem := n.problem(v)
			full = err != nil && strings.Contains(problem, unix.ENOSPC.Error())
			if full {
				return nil
			}
			if err == nil && problem != "" {
				err = fmt.Errorf("the condition is %q", problem)
			}
			return err
		})
		if full {
			return i - 1, release
		}
	}
}

// problem returns what NodeGetVolumeStats says ails a volume, "" for nothing.
func (n *node) problem(v *harness.Volume) string {
	n.t.Helper()
	stats, err := n.Node().NodeGetVolumeStats(n.t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID(), VolumePath: n.Target(v)})
	if err != nil {
		n.t.Fatal(err)
	}
	if !stats.GetVolumeCondition().GetAbnormal() {
		return ""
	}
	return stats.GetVolumeCondition().GetMessage()
}

// wantProblem waits for a failed update to be told: by an event, written once, and by
// the volume's condition.
func (n *node) wantProblem(v *harness.Volume, text string) {
	n.t.Helper()
	n.hasEvent(v, "VolumeUpdateFailed", text)
	n.hasCondition(v, text)
}

// Readers that keep files of the past open can fill a volume. It shows what it showed
// until they let go.
func TestVolumeFullOfOldGenerations(t *testing.T) {
	for _, tc := range []struct {
		name string
		size string
		// keys are how many there are, and data what one of them holds in generation i.
		keys int
		data func(i int) string
	}{
		{"pages", "64Ki", 1, func(i int) string { return fmt.Sprintf("%060000d", i) }},
		{"inodes", "4Ki", 500, func(int) string { return "" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, "--max-volume-size="+tc.size)
			object := func(i int) map[string]string {
				data := make(map[string]string, tc.keys)
				for k := range tc.keys {
					data[fmt.Sprintf("%d-%d", i, k)] = tc.data(i)
				}
				return data
			}
			n.configMap("app", object(-1))
			v := n.short("app")
			shows := func(i int) error { return n.showsJust(v, object(i)) }
			n.mustPublish(v)
			last, release := n.fillByReaders(v, "app", object, shows)
			t.Logf("full in generation %d", last+1)
			n.wantProblem(v, "no space left on device")
			n.mustPublish(v) // as the kubelet does after its own restart
			if err := shows(last); err != nil {
				t.Errorf("while the volume is full: %v", err)
			}
			release()
			harness.Eventually(t, afterCause, func() error { return shows(last + 1) })
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}

// showsJust says how a volume's files differ from data.
func (n *node) showsJust(v *harness.Volume, data map[string]string) error {
	files, err := harness.Files(n.Target(v))
	if err != nil {
		return err
	}
	for key, want := range data {
		if f, ok := files[key]; !ok || f.Content != want {
			return fmt.Errorf("%.60s: there is %t, with %d bytes, want %d", key, ok, len(f.Content), len(want))
		}
	}
	if len(files) != len(data) {
		return fmt.Errorf("%d files, want %d", len(files), len(data))
	}
	return nil
}

// An update over a limit of the volume is refused as a whole, and the next one that
// fits is not held up by it.
func TestUpdateOverTheLimit(t *testing.T) {
	for _, tc := range []struct {
		name string
		data map[string]string
		text string
	}{
		{"bytes", map[string]string{"key": string(make([]byte, 128<<10))}, "take 131072 bytes of memory, more than the 65536 bytes that a volume may have (--max-volume-size)"},
		{"inodes", emptyKeys(1000), "take 2002 inodes, more than the 1088 that a volume may have"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, "--max-volume-size=64Ki")
			value := n.canary()
			n.configMap("app", map[string]string{"key": value})
			v := n.short("app")
			n.mustPublish(v)
			n.configMap("app", tc.data)
			n.wantProblem(v, tc.text)
			n.wantContent(v, "key", value)
			// A new volume of the same object is refused with the same words.
			wantStatus(t, n.Publish(t.Context(), n.short("app")), codes.OutOfRange, tc.text)
			value = n.canary()
			n.configMap("app", map[string]string{"key": value})
			n.arrives(v, "key", value, afterCause)
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}

func emptyKeys(count int) map[string]string {
	data := make(map[string]string, count)
	for i := range count {
		data[fmt.Sprint("key-", i)] = ""
	}
	return data
}

// limitDescriptors sets the soft limit of what the plugin may have open, and returns
// what takes that back; the descriptors that it has stay.
func (n *node) limitDescriptors(to uint64) (lift func()) {
	n.t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, nil, &old); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: to, Max: old.Max}, nil); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &old, nil); err != nil {
			n.t.Fatal(err)
		}
	}
}

// Without a free descriptor nothing can be written, published or unpublished, and each
// says so; what shows stays.
func TestOutOfDescriptors(t *testing.T) {
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	v, goes, comes := n.short("app"), n.short("app"), n.short("app")
	n.mustPublish(v)
	n.mustPublish(goes)
	// What the plugin has open stays, and nothing can be opened.
	lift := n.limitDescriptors(1)
	next := n.canary()
	n.configMap("app", map[string]string{"key": next})
	const text = "too many open files"
	n.wantEventOnly(v, text)
	wantStatus(t, n.Publish(t.Context(), comes), codes.Unavailable, text)
	// The kubelet unmounts a running pod's volume after a final answer.
	wantStatus(t, n.Publish(t.Context(), v), codes.Unavailable, text)
	wantStatus(t, n.Unpublish(t.Context(), goes), codes.Internal, text)
	n.wantContent(v, "key", value)
	n.wantContent(goes, "key", value)
	n.wantMounts(2)

	lift()
	n.arrives(v, "key", next, afterCause)
	n.hasCondition(v, "")
	n.mustPublish(comes)
	n.wantContent(comes, "key", next)
	for _, v := range []*harness.Volume{v, goes, comes} {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// wantEventOnly is wantProblem for a plugin that can't measure the volume either, so
// that NodeGetVolumeStats fails with the same text.
func (n *node) wantEventOnly(v *harness.Volume, text string) {
	n.t.Helper()
	n.hasEvent(v, "VolumeUpdateFailed", text)
	_, err := n.Node().NodeGetVolumeStats(n.t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID(), VolumePath: n.Target(v)})
	wantStatus(n.t, err, codes.Internal, text)
}

// smallState puts the plugin's state directory on a file system of 64 KiB of its own,
// and restarts the plugin.
func (n *node) smallState() {
	n.t.Helper()
	n.mustKill()
	if err := unix.Mount("state", n.StateDir(), "tmpfs", 0, "size=64k"); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { // before finish, which searches the disk
		n.mustKill()
		if err := unix.Unmount(n.StateDir(), unix.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
	n.mustStart()
}

// Where no record can be written, no volume begins and each failed record is told. The
// files of live volumes go on being current: a record is needed after a restart only.
func TestStateDirectoryTakesNothing(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		// end is the code of an unpublish, whose record can be removed from a full disk.
		end   codes.Code
		spoil func(t *testing.T, dir string) (mend func() error)
	}{
		{"full", "no space left on device", codes.OK, fillDisk},
		{"read-only", "read-only file system", codes.Internal, func(t *testing.T, dir string) func() error {
			t.Helper()
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			return func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") }
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			n.smallState()
			n.configMap("app", map[string]string{"key": n.canary()})
			n.configMap("other", map[string]string{"key": n.canary()})
			v, goes, comes := n.short("app"), n.short("other"), n.short("app")
			n.mustPublish(v)
			n.mustPublish(goes)
			record := n.recordText(v)
			mend := tc.spoil(t, n.StateDir())
			value := n.canary()
			n.configMap("app", map[string]string{"key": value})
			n.arrives(v, "key", value, soon)
			n.wantProblem(v, tc.text)
			wantStatus(t, n.Publish(t.Context(), comes), codes.Internal, "write the record of volume", tc.text)
			if err := n.Unpublish(t.Context(), goes); tc.end != codes.OK || err != nil {
				wantStatus(t, err, tc.end, "remove the record of volume", tc.text)
			}
			n.mustPublish(v) // as the kubelet does after its own restart
			n.wantMounts(1)
			if now := n.recordText(v); now != record {
				t.Errorf("the record is now %q, and was %q", now, record)
			}
			if err := mend(); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, afterCause, func() error {
				if problem := n.problem(v); problem != "" || n.recordText(v) == record {
					return fmt.Errorf("the record is the old one, and the condition %q", problem)
				}
				return nil
			})
			n.mustPublish(comes)
			for _, v := range []*harness.Volume{v, goes, comes} {
				n.mustUnpublish(v)
			}
			n.wantNothingLeft()
		})
	}
}

// recordText returns the whole record of a volume.
func (n *node) recordText(v *harness.Volume) string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.StateDir(), n.recordOf(v)))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// fillDisk writes to a file of the directory's file system until there is no room.
func fillDisk(t *testing.T, dir string) (mend func() error) {
	t.Helper()
	path := filepath.Join(filepath.Clean(dir), "somebody-elses")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, os.Getpagesize())
	for err == nil {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill %s: %v", dir, err)
	}
	return func() error { return os.Remove(path) }
}
