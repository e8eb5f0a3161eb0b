package main

import (
	"context"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/writer"
)

// opens counts how often files below a directory were opened, by their last names.
type opens struct {
	t      testing.TB
	fd     int
	counts map[string]int
}

// watchOpens watches the existing files. add adds new generations.
func watchOpens(t testing.TB, dir string) *opens {
	t.Helper()
	fd := must.Get(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC))(t)
	t.Cleanup(func() { unix.Close(fd) })
	o := &opens{t: t, fd: fd, counts: map[string]int{}}
	o.add(dir)
	return o
}

func (o *opens) add(dir string) {
	o.t.Helper()
	must.Do(o.t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		_, err = unix.InotifyAddWatch(o.fd, path, unix.IN_OPEN)
		return err
	}))
}

// of returns how often files of a name were opened, without directories.
func (o *opens) of(name string) int {
	buffer := make([]byte, 64<<10)
	for {
		n, err := unix.Read(o.fd, buffer)
		if err != nil || n <= 0 {
			return o.counts[name]
		}
		for rest := buffer[:n]; len(rest) > 0; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			text := rest[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+int(event.Len)]
			if event.Mask&unix.IN_ISDIR == 0 {
				o.counts[strings.TrimRight(string(text), "\x00")]++
			}
			rest = rest[unix.SizeofInotifyEvent+int(event.Len):]
		}
	}
}

func called(t testing.TB) (url string, count *atomic.Int64) {
	t.Helper()
	count = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { count.Add(1) }))
	t.Cleanup(server.Close)
	return server.URL, count
}

// A watched file is never opened, whatever happens to it: only its reader causes a receipt. The writer opens files that it changes, so opens of b
// count from the last write on, and those of the file that stays from the beginning.
func TestNeverOpensAWatchedFile(t *testing.T) {
	v := newVolume(t)
	v.write("conf/b", "one", "watched", "one")
	seen := watchOpens(t, v.path)
	url, count := called(t)
	p := start(t, "--dir="+v.path, "--url="+url, "--settle=0s")
	for _, text := range []string{"two", "three"} {
		acted := count.Load()
		v.write("conf/b", text, "watched", "one")
		seen.add(v.path)
		waitFor(t, "the change is acted on", func() bool { return count.Load() > acted })
	}
	before, acted := seen.of("b"), count.Load()
	must.Do(t, os.Chtimes(v.at("conf/b"), time.Unix(1, 0), time.Unix(1, 0)))
	waitFor(t, "another time is acted on", func() bool { return count.Load() > acted })
	p.stop()
	if b, watched := seen.of("b")-before, seen.of("watched"); b+watched != 0 {
		t.Errorf("files were opened %d and %d times", b, watched)
	}
	must.Get(os.ReadFile(v.at("conf/b")))(t)
	if n := seen.of("b") - before; n != 1 {
		t.Errorf("the open of a reader was noticed %d times", n)
	}
}

// An update that changes no relevant file causes no action.
func TestWhatCounts(t *testing.T) {
	v := newVolume(t)
	v.write("conf/a.yaml", "1", "other", "1", "versions", "1")
	for _, c := range []struct {
		args string
		want string
	}{
		{"", "conf/a.yaml other"},
		{"--only=*.yaml", "conf/a.yaml"},
		{"--only=conf/a.*", "conf/a.yaml"},
		{"--only=other --only=none", "other"},
		{"--ignore=other", "conf/a.yaml"},
		{"--only=versions", "versions"},
		{"--only=* --ignore=versions", "conf/a.yaml other"},
	} {
		o := mustParse(t, append(strings.Fields(c.args), "--dir="+v.path, "--url=http://127.0.0.1/")...)
		before := mustLook(t, o)
		if got := v.differ(files{}, before); got != c.want {
			t.Errorf("%s: %s, not %s", c.args, got, c.want)
		}
	}
	o := mustParse(t, "--dir="+v.path, "--url=http://127.0.0.1/")
	before := mustLook(t, o)
	for _, step := range []struct{ want, a, other, versions string }{
		{"", "1", "1", "2"}, {"other", "1", "2", "3"}, {"conf/a.yaml other", "2", "3", "3"},
	} {
		v.write("conf/a.yaml", step.a, "other", step.other, "versions", step.versions)
		after := mustLook(t, o)
		if got := v.differ(before, after); got != step.want {
			t.Errorf("%+v: %s differ", step, got)
		}
		before = after
	}
	v.write("other", "3")
	if got := v.differ(before, mustLook(t, o)); got != "conf/a.yaml" {
		t.Errorf("%s differ after the removal of a file", got)
	}
}

// differ returns the paths in the volume that differ between two looks.
func (v *liveVolume) differ(before, after files) string {
	return strings.ReplaceAll(strings.Join(differences(before, after), " "), v.path+"/", "")
}

func mustLook(t testing.TB, o *options) files {
	t.Helper()
	return must.Get(look(o, func(string) {}))(t)
}

// A directory without ..data, such as a subPath mount, is watched too. One that doesn't exist is waited for.
func TestPlainDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	url, count := called(t)
	p := &started{log: &leak.Log{}}
	done := make(chan int, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); <-done }()
	go func() { done <- run(ctx, []string{"--dir=" + dir, "--url=" + url, "--settle=0s"}, p.log, p.log) }()
	waitFor(t, "it says that there is no directory", func() bool { return strings.Contains(p.log.String(), "no such file or directory") })
	must.Do(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	waitFor(t, "it watches", func() bool { return strings.Contains(p.log.String(), "msg=watches") })
	must.Do(t, os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o600))
	waitFor(t, "the file is acted on", func() bool { return count.Load() > 0 })
}

// Without an inotify instance the files are read each second. The limit is set in a user namespace of the process.
func TestNoInotifyInstanceIsLeft(t *testing.T) {
	v := newVolume(t)
	v.write("a", "1")
	url, count := called(t)
	log := &leak.Log{}
	cmd := self(t.Context(), "program without inotify", "--dir="+v.path, "--url="+url, "--settle=0s")
	cmd.Stderr = log
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1, HostID: os.Getuid()}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1, HostID: os.Getgid()}}
	must.Do(t, cmd.Start())
	waitFor(t, "it watches", func() bool { return strings.Contains(log.String(), "msg=watches") })
	v.write("a", "2")
	waitFor(t, "the change is acted on", func() bool { return count.Load() == 1 })
	must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("SIGTERM ends it with %v", err)
	}
	if !strings.Contains(log.String(), "fs.inotify.max_user_instances") {
		t.Errorf("the log does not say what to raise:\n%s", log)
	}
}

// TestLookDuringASwitch: if the generation that is looked at is removed meanwhile, the next one is.
func TestLookDuringASwitch(t *testing.T) {
	v := newVolume(t)
	v.write("a", "1")
	o := mustParse(t, "--dir="+v.path, "--url=http://127.0.0.1/")
	isSwitched := false
	found, err := look(o, func(dir string) {
		if dir == v.path || isSwitched {
			return
		}
		isSwitched = true
		v.write("a", "1", "b", "2")
		must.Get(writer.Prune(v.root, nil, nil))(t)
	})
	if err != nil || !isSwitched || !slices.Equal(slices.Sorted(maps.Keys(found)), []string{v.at("a"), v.at("b")}) {
		t.Errorf("found %v, switched %t: %v", found, isSwitched, err)
	}
}

// TestAChangeBeforeTheWatch: what changes before a directory is watched wakes nobody, so the look must find it.
func TestAChangeBeforeTheWatch(t *testing.T) {
	v := newVolume(t)
	v.write("a", "1")
	o := mustParse(t, "--dir="+v.path, "--url=http://127.0.0.1/")
	found, err := look(o, func(dir string) {
		if dir == v.path {
			v.write("a", "1", "b", "2")
		}
	})
	if err != nil || !slices.Equal(slices.Sorted(maps.Keys(found)), []string{v.at("a"), v.at("b")}) {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestFirstNames(t *testing.T) {
	names := strings.Fields("a b c d e f g h")
	for n, want := range map[int]string{0: "", 1: "a", 5: "a, b, c, d, e", 6: "a, b, c, d, e and 1 more", 8: "a, b, c, d, e and 3 more"} {
		if got := firstNames(names[:n]); got != want {
			t.Errorf("%d names: %q, want %q", n, got, want)
		}
	}
}

// TestWaitWithoutTheKernel: without the kernel's notifications, a look comes more often.
func TestWaitWithoutTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, w := range map[time.Duration]*watcher{time.Hour: {file: os.Stdin}, pollEvery: {}} {
			began := time.Now()
			must.Do(t, w.wait(t.Context(), time.Hour))
			if took := time.Since(began); took != want {
				t.Errorf("it waited %v, want %v", took, want)
			}
		}
	})
}
