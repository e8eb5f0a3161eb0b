package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// newPlain starts a plugin that takes what a release takes: no race detector, few logs.
func newPlain(t *testing.T, args ...string) *node {
	t.Helper()
	binary, err := shared.plain()
	if err != nil {
		t.Fatal(err)
	}
	return newNodeWith(t, harness.PluginOptions{Binary: binary, Kubeconfig: shared.kubeconfig, Args: append(args, "-v=2")})
}

// readCalls returns how often the plugin has called read(2), of whatever.
func (n *node) readCalls() int {
	n.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", n.PID()))
	var chars, calls int
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d\nwchar: %d\nsyscr: %d", &chars, new(int), &calls)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return calls
}

// takesReceipt opens a file of a volume, and returns how long after that it has its receipt.
func (n *node) takesReceipt(v *harness.Volume) time.Duration {
	n.t.Helper()
	path := filepath.Join(n.Target(v), "a")
	prefix, err := harness.AttributePrefix(n.Target(v))
	if err != nil {
		n.t.Fatal(err)
	}
	begin := time.Now()
	n.reads(path)
	harness.Eventually(n.t, soon, func() error {
		_, err := unix.Getxattr(path, prefix+"opened", nil)
		return err
	})
	return time.Since(begin)
}

// opensInALoop opens a file without a pause until the returned function is called, which returns how often it did.
func opensInALoop(t *testing.T, path string) (stop func() int) {
	ended, done := make(chan struct{}), make(chan int)
	go func() {
		for opened := 0; ; opened++ {
			select {
			case <-ended:
				done <- opened
				return
			default:
			}
			file, err := os.Open(path)
			if err != nil {
				t.Error(err)
				done <- opened
				return
			}
			file.Close()
		}
	}()
	return func() int { close(ended); return <-done }
}

// TestALoopingOpener costs the plugin little, beside a pod with as many volumes as may be, also while what it opens changes; and
// receipts of other volumes come as soon as without it.
func TestALoopingOpener(t *testing.T) {
	const most, changes, interval = 128, 25, 200 * time.Millisecond
	needsReceipts(t)
	n := newPlain(t, anyStatusPort)
	n.configMap("app", map[string]string{"a": "1", "b": "1"})
	n.configMap("looped", map[string]string{"a": "0", "b": "1"})
	volumes := []*harness.Volume{n.short("looped")}
	for i := range most - 1 {
		v := *volumes[0]
		v.Name, v.Attributes = fmt.Sprint("volume-", i), map[string]string{"configMap": "app"}
		volumes = append(volumes, &v)
	}
	n.publishAll(volumes)
	alone := n.takesReceipt(volumes[1])

	stop := opensInALoop(t, filepath.Join(n.Target(volumes[0]), "a"))
	begin, cpu, calls := time.Now(), n.cpuTime(), n.readCalls()
	var beside time.Duration
	for i := range changes {
		n.configMap("looped", map[string]string{"a": strconv.Itoa(i), "b": "1"})
		if i == changes/2 {
			beside = n.takesReceipt(volumes[2])
		}
		<-time.After(time.Until(begin.Add(time.Duration(i+1) * interval)))
	}
	took, cpu, calls := time.Since(begin), n.cpuTime()-cpu, n.readCalls()-calls
	opened := stop()
	percent, rate := 100*cpu.Seconds()/took.Seconds(), float64(calls)/took.Seconds()
	t.Logf("%d opens in %s: the plugin took %.1f%% of a core and read %.0f times a second; another volume's receipt took %s, %s before",
		opened, took, percent, rate, beside, alone)
	if percent > 25 || rate > 1000 {
		t.Error("want 25% and 1000 at most")
	}
	if beside > time.Second+10*alone {
		t.Error("the receipt is late")
	}
	n.isOpened(volumes[0], "looped", "no", "b")
	n.unpublishAll(volumes)
}

// TestManyQuietVolumesOfAPod: two pods open a few files of each of their many volumes, and another pod opens more files of its only volume.
// Together that is too fast. Some of the many volumes lose their receipts. The only volume keeps its receipts, although it has
// more opens than each other volume.
func TestManyQuietVolumesOfAPod(t *testing.T) {
	const each, few, more = 55, 160, 300 // 17,900 opens, and the limit is 16,384
	needsReceipts(t)
	n := newPlain(t, anyStatusPort)
	keys := map[string]string{}
	for i := range more {
		if i == few {
			n.configMap("few", keys)
		}
		keys[fmt.Sprint("k", i)] = ""
	}
	n.configMap("more", keys)
	victim := n.short("more")
	volumes := []*harness.Volume{victim}
	for range 2 { // so that no pod has unusually many files
		pod := n.short("few")
		for i := range each {
			v := *pod
			v.Name = fmt.Sprint("volume-", i)
			volumes = append(volumes, &v)
		}
	}
	n.publishAll(volumes)

	signal := func(s unix.Signal) {
		if err := unix.Kill(n.PID(), s); err != nil {
			t.Fatal(err)
		}
	}
	signal(unix.SIGSTOP) // so that it finds all opens at once, however slow the machine is
	resume := sync.OnceFunc(func() { signal(unix.SIGCONT) })
	defer resume()
	for _, v := range volumes {
		paths, err := filepath.Glob(filepath.Join(n.Target(v), "k*"))
		if err != nil || len(paths) < few {
			t.Fatalf("%d files: %v", len(paths), err)
		}
		n.reads(paths...)
	}
	resume()
	var kept string // the state of the victim's object, as in isOpened
	states := map[string]int{}
	harness.Eventually(t, soon, func() error {
		report, err := n.report()
		if err != nil {
			return err
		}
		clear(states)
		for i := range report.Volumes {
			o := &report.Volumes[i].Objects[0]
			switch state := strings.TrimSpace(o.Opened + " " + report.Volumes[i].OpenedReason); {
			case o.Opened == "no":
				return fmt.Errorf("the opens of %s are not reported", report.Volumes[i].VolumeID)
			case report.Volumes[i].VolumeID == victim.ID():
				kept = state
			default:
				states[state]++
			}
		}
		return nil
	})
	t.Logf("the state of a pod's only volume is %q, and of the %d others %v; \"\" is opened", kept, 2*each, states)
	if kept != "" {
		t.Error("the pod with one volume has lost its receipts")
	}
	if states[""] == 0 || states[""] == 2*each {
		t.Error("want some of the others to lose their receipts")
	}
	n.unpublishAll(volumes)
}
