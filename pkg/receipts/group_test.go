package receipts

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestABurstLosesNothing while nobody reads.
func TestABurstLosesNothing(t *testing.T) {
	const files = 17_000
	v := unlimited(t)
	_, r := v.watch(v.numbered(files), "")
	_, other := v.watch(v.dir("other", "key"), "")
	run(t, job("burst", v.path+"/1", strconv.Itoa(files)))
	v.cat("other/key")
	v.want(other, "key")
	if paths, calls := r.take(); len(paths) != files || calls != 1 || v.overflows != 0 {
		t.Errorf("got %d files in %d calls, and %d overflows, want %d, 1 and none", len(paths), calls, v.overflows, files)
	}
}

// TestAnOverflowIsTold, after what did arrive.
func TestAnOverflowIsTold(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/fanotify/max_queued_events")
	if err != nil {
		t.Skip(err)
	}
	limit, err := strconv.Atoi(string(text[:len(text)-1]))
	if err != nil || limit > 50_000 {
		t.Skipf("the queue's limit is %d: %v", limit, err)
	}
	v := newVolume(t, func(overflow func()) (*Group, error) { return newGroup(groupFlags, overflow) })
	_, r := v.watch(v.numbered(limit+100), "")
	run(t, job("burst", v.path+"/1", strconv.Itoa(limit+100)))
	v.drain()
	if paths, _ := r.take(); len(paths) < limit-1 || len(paths) > limit || v.overflows != 1 {
		t.Errorf("got %d files and %d overflows, want about %d and 1", len(paths), v.overflows, limit)
	}
	v.cat("1/1")
	v.want(r, "1")
	if v.overflows != 1 {
		t.Error("the overflow was told again")
	}
}

// numbered makes a directory of so many files.
func (v *volume) numbered(files int) *os.File {
	v.Helper()
	dir := v.dir("1")
	for i := range files {
		fd, err := unix.Openat(int(dir.Fd()), strconv.Itoa(i), unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		v.must(err)
		unix.Close(fd)
	}
	return dir
}

// runs runs the group until the test ends.
func (v *volume) runs() {
	v.Helper()
	ctx, cancel := context.WithCancel(v.Context())
	done := make(chan error)
	go func() { done <- v.group.Run(ctx) }()
	v.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			v.Errorf("Run: %v", err)
		}
	})
}

// TestALoopingOpenerIsMerged: it costs a hundred reports a second, and hides no other volume's.
func TestALoopingOpenerIsMerged(t *testing.T) {
	v := unlimited(t)
	_, r := v.watch(v.dir("1", "key"), "")
	_, other := v.watch(v.dir("2", "key"), "")
	v.runs()
	stop := startLoop(t, v.path+"/1/key")
	r.take()
	from, cpu := time.Now(), used(t, unix.RUSAGE_SELF)
	for range 100 {
		v.cat("2/key")
		waitFor(t, func() bool { paths, _ := other.take(); return len(paths) > 0 })
	}
	for time.Since(from) < time.Second {
		<-time.After(10 * time.Millisecond)
	}
	_, calls := r.take()
	took, cpu := time.Since(from), used(t, unix.RUSAGE_SELF)-cpu
	opens := stop()
	rate := float64(calls) / took.Seconds()
	t.Logf("%d opens in %v; %.0f reports a second; %.1f%% of a core, with 100 other processes started",
		opens, took, rate, 100*cpu.Seconds()/took.Seconds())
	if rate > 150 || calls == 0 {
		t.Errorf("%.0f reports a second, want some, and at most 150", rate)
	}
}

// used returns the CPU time of this process or thread.
func used(t testing.TB, who int) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime))
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for from := time.Now(); !done(); <-time.After(time.Millisecond) {
		if time.Since(from) > 30*time.Second {
			t.Fatal("nothing came in 30 s")
		}
	}
}

// TestRunEndsWithItsContext, also when there is nothing to read.
func TestRunEndsWithItsContext(t *testing.T) {
	v := unlimited(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- v.group.Run(ctx) }()
	cancel()
	v.must(<-done)
	if v.overflows > 0 {
		t.Error("overflow was called")
	}
}

// TestNothingWorksAfterClose, and it is said.
func TestNothingWorksAfterClose(t *testing.T) {
	v := unlimited(t)
	dir := v.dir("1", "key")
	v.must(v.group.Close())
	_, drainErr := v.group.Drain()
	for name, err := range map[string]error{
		"Add":    v.group.Watch(nil).Add(int(dir.Fd()), "1"),
		"Ignore": v.group.Ignore(int(dir.Fd())),
		"Listen": v.group.Listen(int(dir.Fd())),
		"Stop":   v.group.Watch(nil).Stop(int(dir.Fd())),
		"Drain":  drainErr,
		"Run":    v.group.Run(t.Context()),
		"Close":  v.group.Close(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestAddRefuses what is no directory.
func TestAddRefuses(t *testing.T) {
	v := unlimited(t)
	v.dir("1", "key")
	for name, fd := range map[string]int{"file": int(v.open("1/key").Fd()), "closed descriptor": -1} {
		if err := v.group.Watch(nil).Add(fd, "1"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if n := len(v.group.dirs); n != 0 {
		t.Errorf("there are %d directories, want none", n)
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	v := unlimited(t)
	v.runs()
	stop := startLoop(t, v.dir("1", "key").Name()+"/key")
	var users sync.WaitGroup
	for i := range 4 {
		users.Go(func() {
			for n := range 100 {
				path := fmt.Sprintf("%d-%d", i, n)
				dir := v.dir(path, "key")
				w, _ := v.watch(dir, "")
				file := v.open(path + "/key")
				err := v.group.Ignore(int(file.Fd()))
				if err == nil {
					_, err = v.group.Drain()
				}
				if err == nil {
					err = w.Stop(int(dir.Fd()))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	stop()
	if n := len(v.group.dirs); n != 0 {
		t.Errorf("%d directories are left", n)
	}
}
