package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
)

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

// problem returns what the plugin's log says ails a volume, "" for nothing.
func (n *node) problem(v *harness.Volume) string {
	n.t.Helper()
	problem, err := n.Problem(v)
	if err != nil {
		n.t.Fatal(err)
	}
	return problem
}

// wantProblem waits for a failed update to be told: by an event, written once, and by
// the log.
func (n *node) wantProblem(v *harness.Volume, text string) {
	n.t.Helper()
	n.hasEvent(v, "VolumeUpdateFailed", text)
	n.hasCondition(v, text)
}

// Readers that keep files of the past open can fill a volume. It shows what it showed
// until they let go.
func TestVolumeFullOfOldGenerations(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--max-volume-size=64Ki")
	object := func(i int) map[string]string { return map[string]string{fmt.Sprint(i): fmt.Sprintf("%060000d", i)} }
	n.configMap("app", object(-1))
	v := n.short("app")
	shows := func(i int) error { return n.showsJust(v, object(i)) }
	n.mustPublish(v)
	// A reader holds each generation, until the volume is told to be full.
	last, full := -1, false
	var releases []func()
	for ; !full; last++ {
		if last == 32 {
			t.Fatal("32 generations are held open and the volume is not full")
		}
		releases = append(releases, hold(t, n.Target(v)))
		n.configMap("app", object(last+1))
		harness.Eventually(t, soon, func() error {
			err, problem := shows(last+1), n.problem(v)
			if full = err != nil && strings.Contains(problem, unix.ENOSPC.Error()); full {
				return nil
			}
			if err == nil && problem != "" {
				err = fmt.Errorf("the condition is %q", problem)
			}
			return err
		})
	}
	last--
	t.Logf("full in generation %d", last+1)
	n.wantProblem(v, "no space left on device")
	n.mustPublish(v) // as the kubelet does after its own restart
	if err := shows(last); err != nil {
		t.Errorf("while the volume is full: %v", err)
	}
	for _, release := range releases {
		release()
	}
	harness.Eventually(t, afterCause, func() error { return shows(last + 1) })
	n.hasCondition(v, "")
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// showsJust says how a volume's files differ from data.
func (n *node) showsJust(v *harness.Volume, data map[string]string) error {
	files, err := harness.Files(n.Target(v))
	if err != nil {
		return err
	}
	for key, want := range data {
		if f, ok := files[key]; !ok || f != want {
			return fmt.Errorf("%.60s: there is %t, with %d bytes, want %d", key, ok, len(f), len(want))
		}
	}
	if len(files) != len(data) {
		return fmt.Errorf("%d files, want %d", len(files), len(data))
	}
	return nil
}

// TestReadersDontExceedTheTotal has readers keep all files open that volumes ever showed. What the kernel
// holds stays below the node's total, and publishes and updates go on once the readers have ended.
func TestReadersDontExceedTheTotal(t *testing.T) {
	t.Parallel()
	const total = 4 << 20
	n := newNode(t, "--max-volume-size=1Mi", fmt.Sprintf("--max-total-size=%d", total))
	large := func(i int) map[string]string {
		return map[string]string{"key": fmt.Sprint(i) + strings.Repeat("x", 600<<10)}
	}
	var volumes []*harness.Volume
	var releases []func()
	for i := range 8 {
		name := fmt.Sprint("app", i)
		n.configMap(name, large(0))
		v := n.short(name)
		err := n.Publish(t.Context(), v)
		if status.Code(err) == codes.ResourceExhausted {
			n.mustUnpublish(v)
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		volumes = append(volumes, v)
		releases = append(releases, hold(t, n.Target(v)))
		n.configMap(name, map[string]string{"key": "small"})
		n.arrives(v, "key", "small", soon)
		n.configMap(name, large(1))
		n.arrives(v, "key", large(1)["key"], soon)
		releases = append(releases, hold(t, n.Target(v)))
		n.configMap(name, map[string]string{"key": "small"})
		n.arrives(v, "key", "small", soon)
		harness.Eventually(t, soon, func() error { return n.pruned(v) })
	}
	held := n.kernelCounts(volumes...)
	t.Logf("%d volumes hold %d KiB, the limit is %d", len(volumes), held>>10, total>>10)
	if held > total {
		t.Errorf("the kernel holds %d bytes, more than %d", held, total)
	}
	n.configMap("another", large(0))
	another := n.short("another")
	wantStatus(t, n.Publish(t.Context(), another), codes.ResourceExhausted, "(--max-total-size)")
	for _, release := range releases {
		release()
	}
	// What they held is noticed with the next change.
	for i := range volumes {
		n.configMap(fmt.Sprint("app", i), map[string]string{"key": "smaller"})
		n.arrives(volumes[i], "key", "smaller", soon)
	}
	n.publishes(another, soon)
	n.unpublishAll(append(volumes, another))
}

const (
	// mostBytes is what the API server allows the keys and values of one object.
	mostBytes = 1 << 20
	// longestKey is the longest key that it allows.
	longestKey = 253
)

// The largest objects that the API server takes are published, updated and unpublished
// like any.
func TestLargestObjects(t *testing.T) {
	needsLong(t)
	t.Parallel()
	for _, tc := range []struct {
		name string
		data func(n *node) map[string]string
	}{
		{"one file of 1 MiB", func(n *node) map[string]string {
			value := n.canary()
			return map[string]string{"key": value + strings.Repeat("x", mostBytes-len("key")-len(value))}
		}},
		{"longest names of keys", func(n *node) map[string]string {
			data := make(map[string]string)
			for i := range 100 {
				data[strings.Repeat("k", longestKey-3)+fmt.Sprintf("%03d", i)] = n.canary()
			}
			return data
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			data := tc.data(n)
			n.configMap("app", data)
			v := n.published("app")
			if err := n.showsJust(v, data); err != nil {
				t.Error(err)
			}
			data = tc.data(n)
			n.configMap("app", data)
			harness.Eventually(t, soon, func() error { return n.showsJust(v, data) })
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}

// TestManySmallKeys: an object of many small keys, each of which takes a page, and an inode for its file and for its link,
// fits the defaults, also when all of them change. An eighth of --max-total-size has room for what it shows.
func TestManySmallKeys(t *testing.T) {
	needsLong(t)
	t.Parallel()
	const keys, share = 6000, 512 << 20 / 8
	n := newNode(t)
	values := func(value string) map[string]string {
		data := make(map[string]string, keys)
		for i := range keys {
			data[fmt.Sprint("key-", i)] = value
		}
		return data
	}
	n.configMap("app", values("1"))
	v := n.published("app")
	if err := n.showsJust(v, values("1")); err != nil {
		t.Error(err)
	}
	first := n.kernelCounts(v)
	n.configMap("app", values("2"))
	most := first
	harness.Eventually(t, soon, func() error {
		most = max(most, n.kernelCounts(v))
		return n.showsJust(v, values("2"))
	})
	n.hasCondition(v, "")
	harness.Eventually(t, soon, func() error { return n.pruned(v) })
	last := n.kernelCounts(v)
	t.Logf("it holds %d KiB, after the update %d KiB, and at most %d KiB were seen between", first>>10, last>>10, most>>10)
	if first > share || last > share {
		t.Errorf("it holds %d bytes, after the update %d, want at most %d", first, last, share)
	}
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
