package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
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
		must.Do(t, err)
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

// TestAVolumeFilledByItsContainer has a container with the node's CAP_SYS_ADMIN fill its volume with nested directories,
// names and holes, in the generation and beside it. That costs the plugin few descriptors and little memory, delays the
// updates of that pod, and no other pod's.
func TestAVolumeFilledByItsContainer(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			n := newPlain(t, "--max-volume-size=256Mi", "--max-total-size=4Gi")
			n.value("app")
			n.value("other")
			v, other := n.volume(map[string]string{"configMap": "app", "writeStrategy": strategy}), n.short("other")
			n.mustPublish(v)
			n.mustPublish(other)
			before := must.Get(n.Descriptors())(t)
			resident := n.mostResident()
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
			value, otherValue := n.value("app"), n.value("other")
			n.arrives(other, "key", otherValue, soon)
			n.arrives(v, "key", value, soon)
			if strategy == "Atomic" { // what was in the superseded generation goes
				harness.Eventually(t, soon, func() error { return n.pruned(v) })
			}
			if most := n.mostResident(); most > resident+128<<20 {
				t.Errorf("%d bytes were resident, %d before", most, resident)
			}
			if open, err := n.Descriptors(); err != nil || len(open) > len(before)+8 {
				t.Errorf("%d descriptors are open, %d were (%v)", len(open), len(before), err)
			}
			n.mustUnpublish(v)
			n.mustUnpublish(other)
			n.wantNothingLeft()
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

// TestSomethingMountedOnAFile: an administrator mounts something on a file of a volume, which the kernel lets nobody remove then. The volume
// is updated all the same, also by a plugin that has just started, and it is told once what stays behind.
func TestSomethingMountedOnAFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	next := func() string {
		value := n.canary()
		n.configMap("app", map[string]string{"key": value, "other": "1"})
		return value
	}
	next()
	v := n.published("app")
	generation := must.Get(filepath.EvalSymlinks(filepath.Join(n.Target(v), "..data")))(t)
	file := filepath.Join(generation, "key")
	must.Do(t, unix.Mount(os.DevNull, file, "", unix.MS_BIND, ""))
	umount := sync.OnceFunc(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(umount)
	const text = ": device or resource busy"
	for range 3 {
		n.arrives(v, "key", next(), soon)
		n.hasCondition(v, text)
	}
	if events := n.eventsOf(v, "VolumeUpdateFailed"); len(events) != 1 {
		t.Errorf("%d events: %+v", len(events), events)
	}
	if left, err := os.ReadDir(generation); err != nil || len(left) != 1 {
		t.Errorf("of the generation %v are left, %v, want the file alone", left, err)
	}
	n.mustKill()
	value := next()
	n.mustStart()
	n.arrives(v, "key", value, soon)
	n.hasCondition(v, text)
	umount()
	n.hasCondition(v, "")
	harness.Eventually(t, soon, func() error { return n.pruned(v) })
	n.wantContent(v, "key", value)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
