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
		for _, next := range []map[string]string{{"key": "small"}, large(1), {"key": "small"}} {
			releases = append(releases, hold(t, n.Target(v)))
			n.configMap(name, next)
			n.arrives(v, "key", next["key"], soon)
		}
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
