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

// TestAStormOfOpens: a pod opens superseded files of its volume in many processes, and goes on over a restart of the plugin,
// which takes from the kernel what the plugin has told it to ignore. Publishes and updates of other pods go on, their receipts
// stay known, and SIGTERM is obeyed.
func TestAStormOfOpens(t *testing.T) {
	needsLong(t)
	needsReceipts(t)
	const processes = 8
	n := newPlain(t, anyStatusPort)
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
	n.configMap("app", map[string]string{"a": "2", "b": "2", "c": "2"}) // of these it is known who opens them
	n.arrives(quiet, "b", "2", 20*soon)
	var publishes, updates []time.Duration
	cpu := n.cpuTime()
	begin := time.Now()
	for i := 1; time.Since(begin) < 20*time.Second; i++ {
		from := time.Now()
		v := n.published("app")
		publishes = append(publishes, time.Since(from))
		n.mustUnpublish(v)
		n.configMap("rewritten", map[string]string{"a": strconv.Itoa(i)})
		updates = append(updates, n.arrives(inPlace, "a", strconv.Itoa(i), 20*soon))
	}
	took := time.Since(begin)
	percent := 100 * (n.cpuTime() - cpu).Seconds() / took.Seconds()
	n.reads(filepath.Join(n.Target(quiet), "a"))
	n.isOpened(quiet, "app", "no", "c")
	p99 := func(all []time.Duration) time.Duration { slices.Sort(all); return all[len(all)*99/100] }
	t.Logf("%d publishes, p99 %s; updates in place p99 %s; the plugin took %.1f%% of a core", len(publishes), p99(publishes), p99(updates), percent)
	if p99(publishes) > 5*time.Second || p99(updates) > 5*time.Second { // on a busy machine; the log has the figures
		t.Error("another pod waits for too long")
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
