package limits

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// hold opens every file of the present generation until the end of the test, as readers do, so that its pages and inodes stay when its names
// go. The returned function closes them before.
func hold(t *testing.T, dir string) (release func()) {
	t.Helper()
	var held []*os.File
	for _, path := range must.Get(filepath.Glob(filepath.Join(dir, "..data", "*")))(t) {
		file := must.Get(os.Open(path))(t)
		held = append(held, file)
		t.Cleanup(func() { file.Close() })
	}
	return func() {
		for _, file := range held {
			file.Close()
		}
	}
}

// TestReadersDontExceedTheTotal has readers keep all files open that volumes ever showed. What the kernel
// holds stays below the node's total, and publishes and updates go on once the readers have ended.
func TestReadersDontExceedTheTotal(t *testing.T) {
	t.Parallel()
	const total = 4 << 20
	n := lab.NewNode(t, "--max-volume-size=1Mi", fmt.Sprintf("--max-total-size=%d", total))
	large := func(i int) map[string]string {
		return map[string]string{"key": fmt.Sprint(i) + strings.Repeat("x", 600<<10)}
	}
	var volumes []*harness.Volume
	var releases []func()
	for i := range 8 {
		name := fmt.Sprint("app", i)
		n.ConfigMap(name, large(0))
		v := n.Short(name)
		err := n.Publish(t.Context(), v)
		if status.Code(err) == codes.ResourceExhausted {
			n.MustUnpublish(v)
			break
		}
		must.Do(t, err)
		volumes = append(volumes, v)
		for _, next := range []map[string]string{{"key": "small"}, large(1), {"key": "small"}} {
			releases = append(releases, hold(t, n.Target(v)))
			n.ConfigMap(name, next)
			n.Arrives(v, "key", next["key"], world.Soon)
		}
		harness.Eventually(t, world.Soon, func() error { return n.Pruned(v) })
	}
	held := n.KernelCounts(volumes...)
	t.Logf("%d volumes hold %d KiB, the limit is %d", len(volumes), held>>10, total>>10)
	if held > total {
		t.Errorf("the kernel holds %d bytes, more than %d", held, total)
	}
	n.ConfigMap("another", large(0))
	another := n.Short("another")
	world.WantStatus(t, n.Publish(t.Context(), another), codes.ResourceExhausted, "(--max-total-size)")
	for _, release := range releases {
		release()
	}
	// What they held is noticed with the next change.
	for i := range volumes {
		n.ConfigMap(fmt.Sprint("app", i), map[string]string{"key": "smaller"})
		n.Arrives(volumes[i], "key", "smaller", world.Soon)
	}
	n.Publishes(another, world.Soon)
	n.UnpublishAll(append(volumes, another))
}

// TestAVolumeFilledByItsContainer has a container with the node's CAP_SYS_ADMIN fill its volume with nested directories,
// names and holes, in the generation and beside it. That costs the plugin few descriptors and little memory, delays the
// updates of that pod, and no other pod's.
func TestAVolumeFilledByItsContainer(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			n := lab.NewPlain(t, "--max-volume-size=256Mi", "--max-total-size=4Gi")
			n.Value("app")
			n.Value("other")
			v, other := n.Volume(map[string]string{"configMap": "app", "writeStrategy": strategy}), n.Short("other")
			n.MustPublish(v)
			n.MustPublish(other)
			before := must.Get(n.Descriptors())(t)
			resident := mostResident(n)
			err := harness.ChangeVolume(n.Target(v), func(dir string) error {
				name, err := os.Readlink(filepath.Join(dir, "..data"))
				generation := filepath.Join(dir, name)
				hole := filepath.Join(generation, "hole")
				return errors.Join(err, fill(generation, harness.Scaled(4_000, 20_000)), fill(dir, harness.Scaled(4_000, 20_000)),
					os.WriteFile(hole, nil, 0o600), os.Truncate(hole, 1<<40))
			})
			must.Do(t, err)
			limit := unix.Rlimit{Cur: 100, Max: 100} // those that it has stay
			must.Do(t, unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &limit, nil))
			value, otherValue := n.Value("app"), n.Value("other")
			n.Arrives(other, "key", otherValue, world.Soon)
			n.Arrives(v, "key", value, world.Soon)
			if strategy == "Atomic" { // what was in the superseded generation goes
				harness.Eventually(t, world.Soon, func() error { return n.Pruned(v) })
			}
			if most := mostResident(n); most > resident+128<<20 {
				t.Errorf("%d bytes were resident, %d before", most, resident)
			}
			if open, err := n.Descriptors(); err != nil || len(open) > len(before)+8 {
				t.Errorf("%d descriptors are open, %d were (%v)", len(open), len(before), err)
			}
			n.MustUnpublish(v)
			n.MustUnpublish(other)
			n.WantNothingLeft()
		})
	}
}

// fill makes directories in each other, deeper than a path can be, and as many names.
func fill(dir string, many int) error {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	for i := range many {
		if err := unix.Symlinkat("x", at, fmt.Sprint("name-", i)); err != nil {
			return err
		}
	}
	for range many {
		if err := unix.Mkdirat(at, "nested", 0o755); err != nil {
			return err
		}
		next, err := unix.Openat(at, "nested", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.Close(at)
		at = next
	}
	return nil
}
