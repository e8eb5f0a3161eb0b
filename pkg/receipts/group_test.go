package receipts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

// TestABurstLosesNothing: while nobody reads.
func TestABurstLosesNothing(t *testing.T) {
	const files = 2000
	v := newVolume(t)
	other := v.beside()
	other.dir("other", "key")
	v.numbered(files)
	_, r := v.watch()
	_, last := other.watch()
	run(t, job("burst", v.path+"/1", strconv.Itoa(files)))
	other.cat("other/key")
	if n := must.Get(v.group.read(false, nil))(t); n != files+1 {
		t.Errorf("read %d events, want %d", n, files+1)
	}
	other.want(last, "other/key")
	if paths, calls := r.take(); len(paths) != files || calls != 1 || v.overflows != 0 {
		t.Errorf("got %d files in %d calls, and %d overflows, want %d, 1 and none", len(paths), calls, v.overflows, files)
	}
}

// TestAnOverflowIsTold after the events that did arrive.
func TestAnOverflowIsTold(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/fanotify/max_queued_events")
	if err != nil {
		t.Skip(err)
	}
	limit, err := strconv.Atoi(string(text[:len(text)-1]))
	if err != nil || limit > 50_000 {
		t.Skipf("the queue's limit is %d: %v", limit, err)
	}
	v := newVolume(t)
	v.must(v.group.Close())
	v.group = New(func() { v.overflows++ })
	v.Cleanup(func() { v.group.Close() })
	v.group.flags &^= unix.FAN_UNLIMITED_QUEUE
	v.numbered(limit + 100)
	_, r := v.watch()
	run(t, job("burst", v.path+"/1", strconv.Itoa(limit+100)))
	v.must(v.group.Drain(drainTime))
	if paths, _ := r.take(); len(paths) < limit-1 || len(paths) > limit || v.overflows != 1 {
		t.Errorf("got %d files and %d overflows, want about %d and 1", len(paths), v.overflows, limit)
	}
	must.Get(v.group.read(true, nil))(t) // a pause has passed
	v.cat("1/1")
	v.want(r, "1/1")
	expect.Equal(t, "overflows", v.overflows, 1) // it is not told again
}

func (v *volume) numbered(files int) {
	v.Helper()
	dir := v.dir("1")
	for i := range files {
		fd := must.Get(unix.Openat(int(dir.Fd()), strconv.Itoa(i), unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644))(v)
		unix.Close(fd)
	}
}

func (v *volume) runs() {
	v.Helper()
	ctx, cancel := context.WithCancel(v.Context())
	done := make(chan struct{})
	go func() { v.group.Run(ctx); close(done) }()
	v.Cleanup(func() {
		cancel()
		<-done
	})
}

// TestALoopingOpenerIsMerged: it causes a few reports per second, and hides no other volume's.
func TestALoopingOpenerIsMerged(t *testing.T) {
	v := newVolume(t)
	other := v.beside()
	v.dir("1", "key")
	other.dir("2", "key")
	_, r := v.watch()
	_, quiet := other.watch()
	v.runs()
	stop := startStorm(t, v.path+"/1")
	r.take()
	from := time.Now()
	for range 5 {
		other.cat("2/key")
		waitFor(t, func() bool { files, _ := quiet.take(); return len(files) > 0 })
	}
	_, calls := r.take()
	took := time.Since(from)
	stop()
	if rate := float64(calls) / took.Seconds(); rate > 8 || calls == 0 {
		t.Errorf("%.1f reports a second in %v, want some, and at most 8", rate, took)
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for from := time.Now(); !done(); <-time.After(time.Millisecond) {
		if time.Since(from) > 30*time.Second {
			t.Fatal("nothing came in 30 s")
		}
	}
}

// TestAnIdleGroupIsNotRead: after more than 25 reads in a row that found nothing, and until an open. A group that is made meanwhile wakes
// the reader, too.
func TestAnIdleGroupIsNotRead(t *testing.T) {
	for _, name := range []string{"an open", "a new group"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			v := newVolume(t)
			v.dir("1", "key")
			_, r := v.watch()
			v.runs()
			waitFor(t, func() bool { // a busy machine reads later
				reads := v.group.reads.Load()
				<-time.After(5 * pause)
				return v.group.reads.Load() == reads && reads >= maxEmpty
			})
			if name == "a new group" {
				v.group.reading <- struct{}{}
				_ = v.group.discard(errTooMany)
				<-v.group.reading
				_, r = v.watch()
			}
			v.cat("1/key")
			waitFor(t, func() bool { files, _ := r.take(); return len(files) > 0 })
		})
	}
}

// TestNothingWorksAfterClose: each call returns an error.
func TestNothingWorksAfterClose(t *testing.T) {
	v := newVolume(t)
	dir := int(v.dir("1", "key").Fd())
	fd := v.group.fd
	v.must(v.group.Close())
	if link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
		t.Errorf("the group's descriptor is still %s", link)
	}
	_, watchErr := v.group.Watch(dir, "", nil, nil)
	for name, err := range map[string]error{
		"Watch":  watchErr,
		"Ignore": v.ignore(dir),
		"Listen": v.group.Listen(dir),
		"Drain":  v.group.Drain(drainTime),
		"Close":  v.group.Close(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_, err := v.group.Watch(-1, "", nil, nil)
	expect.Is(t, "of a closed descriptor", err, unix.EBADF)
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	v := newVolume(t)
	v.runs()
	v.dir("1", "key")
	stop := startStorm(t, v.path+"/1")
	var users sync.WaitGroup
	for i := range 4 {
		users.Go(func() {
			for n := range 25 {
				path := fmt.Sprintf("%d-%d", i, n)
				v.dir(path, "key")
				stop, _ := v.watch()
				file := int(v.open(path + "/key").Fd())
				if err := errors.Join(v.ignore(file), v.group.Drain(drainTime), v.group.Listen(file)); err != nil {
					t.Error(err)
				}
				stop()
			}
		})
	}
	users.Wait()
	stop()
	expect.Equal(t, "watches that are left", len(v.group.watches), 0)
}

// TestAGroupThatEnds: its watches end, and there is nothing to do until the next watch, which uses another group.
func TestAGroupThatEnds(t *testing.T) {
	for name, end := range map[string]func(v *volume) error{
		"a read fails": func(v *volume) error {
			v.group.mu.Lock()
			unix.Close(v.group.fd)
			null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			v.group.fd = null
			v.group.mu.Unlock()
			v.must(err)
			return v.group.Drain(drainTime)
		},
		"the queue is too long": func(v *volume) error {
			v.group.reading <- struct{}{}
			defer func() { <-v.group.reading }()
			return v.group.discard(errTooMany)
		},
	} {
		v := newVolume(t)
		v.dir("1", "key")
		_, r := v.watch()
		if err := end(v); err == nil || r.end() == nil || errors.Is(r.end(), ErrNoisy) {
			t.Errorf("%s: got %v, and the watch was ended: %v", name, err, r.end())
		}
		expect.Equal(t, name+": watches that are left", len(v.group.watches), 0)
		file := int(v.open("1/key").Fd())
		v.must(errors.Join(v.group.Drain(drainTime), v.ignore(file), v.group.Listen(file)))
		_, r = v.watch()
		v.cat("1/key")
		v.want(r, "1/key")
	}
}
