package integration

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// stormVariable has this program open files of a directory again and again, instead of testing.
const stormVariable = "REFVOL_STORM"

// storm holds all files of a directory open and opens them again, by that, until its input ends.
func storm(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var held []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		fd, err := unix.Open(filepath.Join(dir, e.Name()), unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		held = append(held, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	_, _ = fmt.Fprintln(os.Stdout, "holds")
	for n := 0; ; n++ {
		select {
		case <-ended:
			return nil
		default:
		}
		fd, err := unix.Open(held[n%len(held)], unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
}

// stormsAt starts processes that storm a directory, until the returned function is called.
func (n *node) stormsAt(dir string, processes int) (stop func()) {
	n.t.Helper()
	var stops []func()
	for range processes {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stderr = append(os.Environ(), stormVariable+"="+dir), os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			n.t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			n.t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			n.t.Fatal(err)
		}
		bufio.NewScanner(out).Scan()
		stops = append(stops, func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				n.t.Errorf("a process of the storm: %v", err)
			}
		})
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// slab returns how much memory the kernel takes for its own objects, in MiB.
func slab(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nSlab:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// TestAStormOfOpens: a pod opens superseded files of its volume in many processes, and goes on over a restart of the plugin,
// which takes from the kernel what the plugin has told it to ignore. Publishes and updates of other pods go on, their receipts
// stay known, the kernel's memory stays flat, and SIGTERM is obeyed, also where the plugin has little of the processors.
func TestAStormOfOpens(t *testing.T) {
	needsReceipts(t)
	for _, processes := range harness.Scaled([]int{8}, []int{1, 8, 40}) {
		// Beside other suites a plugin at low priority gets next to nothing.
		for _, low := range harness.Scaled([]bool{false}, []bool{false, true}) {
			if low && processes > 8 {
				continue // it gets a thousandth of a processor, with receipts and without them
			}
			for _, receipts := range harness.Scaled([]bool{true}, []bool{true, false}) {
				t.Run(fmt.Sprintf("%d processes, low priority %t, receipts %t", processes, low, receipts), func(t *testing.T) {
					testStorm(t, processes, low, receipts)
				})
			}
		}
	}
}

func testStorm(t *testing.T, processes int, low, receipts bool) {
	n := newPlain(t, anyStatusPort, fmt.Sprint("--open-receipts=", receipts))
	many := map[string]string{}
	for i := range 400 {
		many[fmt.Sprint("k", i)] = "1"
	}
	n.configMap("many", many)
	n.configMap("app", map[string]string{"a": "1", "b": "1", "c": "1"})
	n.configMap("rewritten", map[string]string{"a": "0"})
	attacked := n.published("many")
	quiet := n.published("app")
	inPlace := n.volume(map[string]string{"configMap": "rewritten", "writeStrategy": "InPlace"})
	n.mustPublish(inPlace)

	stop := n.stormsAt(n.Target(attacked), processes)
	defer func() { stop() }()
	for key := range many {
		many[key] = "2"
	}
	n.configMap("many", many)
	n.arrives(attacked, "k0", "2", 20*soon)
	n.mustKill()
	n.mustStart()
	before := slab(t)
	if low {
		setNice(t, n.PID())
	}
	n.configMap("app", map[string]string{"a": "2", "b": "2", "c": "2"}) // of these it is known who opens them
	n.arrives(quiet, "b", "2", 20*soon)
	var publishes, updates []time.Duration
	most, cpu := before, n.cpuTime()
	begin := time.Now()
	for i := 1; time.Since(begin) < harness.Scaled(5*time.Second, 20*time.Second); i++ {
		from := time.Now()
		v := n.published("app")
		publishes = append(publishes, time.Since(from))
		n.mustUnpublish(v)
		n.configMap("rewritten", map[string]string{"a": strconv.Itoa(i)})
		updates = append(updates, n.arrives(inPlace, "a", strconv.Itoa(i), 20*soon))
		most = max(most, slab(t))
	}
	took := time.Since(begin)
	percent := 100 * (n.cpuTime() - cpu).Seconds() / took.Seconds()
	if receipts {
		n.reads(filepath.Join(n.Target(quiet), "a"))
		n.isOpened(quiet, "app", "no", "c")
	}
	p99 := func(all []time.Duration) time.Duration { slices.Sort(all); return all[len(all)*99/100] }
	t.Logf("%d publishes, p99 %s; updates in place p99 %s; the plugin took %.1f%% of a core, the kernel at most %d MiB more",
		len(publishes), p99(publishes), p99(updates), percent, most-before)
	if p99(publishes) > 5*time.Second || p99(updates) > 5*time.Second { // on a busy machine; the log has the figures
		t.Error("another pod waits for too long")
	}
	if most-before > 512 {
		t.Errorf("the kernel takes %d MiB more", most-before)
	}
	n.mustUnpublish(quiet)
	n.mustUnpublish(inPlace)
	from := time.Now()
	if err := n.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(from); took > 10*time.Second {
		t.Errorf("SIGTERM took %s", took)
	}
	stop()
	stop = func() {}
	n.mustStart()
	n.mustUnpublish(attacked)
}

// setNice gives the threads of a process, and those that they will make, the lowest priority.
func setNice(t *testing.T, pid int) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = unix.Setpriority(unix.PRIO_PROCESS, id, 19)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
