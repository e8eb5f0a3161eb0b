package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

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
			before, err := n.Descriptors()
			if err != nil {
				t.Fatal(err)
			}
			resident := n.mostResident()
			err = harness.ChangeVolume(n.Target(v), func(dir string) error {
				name, err := os.Readlink(filepath.Join(dir, "..data"))
				generation := filepath.Join(dir, name)
				hole := filepath.Join(generation, "hole")
				return errors.Join(err, fill(generation, harness.Scaled(4_000, 20_000)), fill(dir, harness.Scaled(4_000, 20_000)),
					os.WriteFile(hole, nil, 0o600), os.Truncate(hole, 1<<40))
			})
			if err != nil {
				t.Fatal(err)
			}
			limit := unix.Rlimit{Cur: 100, Max: 100} // those that it has stay
			if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
				t.Fatal(err)
			}
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

// TestAStormOfOpens: a pod opens superseded files of its volume in a loop, also over a restart of the plugin, which takes from
// the kernel what the plugin has told it to ignore. Publishes and updates of other pods go on, and SIGTERM is obeyed.
func TestAStormOfOpens(t *testing.T) {
	needsReceipts(t)
	n := newPlain(t)
	many := map[string]string{}
	for i := range 400 {
		many[fmt.Sprint("k", i)] = "1"
	}
	n.configMap("many", many)
	n.value("app")
	attacked, quiet := n.published("many"), n.published("app")
	var storm sync.WaitGroup
	ended := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(ended)
		storm.Wait()
	})
	defer end()
	for range 8 {
		held, err := holdAll(n.Target(attacked))
		if err != nil {
			t.Fatal(err)
		}
		storm.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ended:
					for _, f := range held {
						_ = f.Close()
					}
					return
				default:
				}
				again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", held[i%len(held)].Fd()))
				if err != nil {
					t.Error(err)
					<-ended
					return
				}
				_ = again.Close()
			}
		})
	}
	for key := range many {
		many[key] = "2"
	}
	n.configMap("many", many)
	n.arrives(attacked, "k0", "2", soon)
	n.mustKill()
	n.mustStart()
	n.arrives(quiet, "key", n.value("app"), soon)
	for begin := time.Now(); time.Since(begin) < harness.Scaled(3*time.Second, 20*time.Second); {
		from := time.Now()
		v := n.published("app")
		n.mustUnpublish(v)
		n.arrives(quiet, "key", n.value("app"), soon)
		if took := time.Since(from); took > 20*time.Second { // on a busy machine
			t.Errorf("another pod waits for %s", took)
		}
	}
	n.reads(filepath.Join(n.Target(quiet), "key"))
	n.isOpened(quiet, "app", "")
	from := time.Now()
	if err := n.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(from); took > 20*time.Second {
		t.Errorf("SIGTERM took %s", took)
	}
	end()
	n.mustStart()
	n.mustUnpublish(attacked)
	n.mustUnpublish(quiet)
}

// holdAll opens all keys of a volume.
func holdAll(dir string) (held []*os.File, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil && e.Name()[0] != '.' {
			var file *os.File
			if file, err = os.Open(filepath.Join(dir, e.Name())); err == nil {
				held = append(held, file)
			}
		}
	}
	return held, err
}
