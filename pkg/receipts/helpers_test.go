package receipts

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
)

// drainTime is longer than a drain takes.
const drainTime = time.Minute

const jobVariable = "REFVOL_RECEIPTS_JOB"

func TestMain(m *testing.M) {
	job := os.Getenv(jobVariable)
	if job == "" {
		os.Exit(sandbox.Main(m))
	}
	if err := do(job, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func do(job string, args []string) error {
	switch job {
	case "O_PATH":
		return openOnce(args[0], unix.O_PATH)
	case "open an O_PATH":
		fd, err := unix.Open(args[0], unix.O_PATH, 0)
		if err != nil {
			return err
		}
		return openOnce(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY)
	case "burst":
		return burst(args[0], args[1])
	case "storm":
		return storm(args[0])
	case "probe":
		dir, err := os.Open(args[0])
		if err != nil {
			return err
		}
		return Probe(int(dir.Fd()))
	}
	return errors.ErrUnsupported
}

func openOnce(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return unix.Close(fd)
}

func burst(dir, files string) error {
	n, err := strconv.Atoi(files)
	for i := 0; i < n && err == nil; i++ {
		err = openOnce(filepath.Join(dir, strconv.Itoa(i)), unix.O_RDONLY)
	}
	return err
}

// storm keeps all files of a directory open, and opens each of them again and again until its input ends.
func storm(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var held []string
	for _, e := range entries {
		fd, err := unix.Open(filepath.Join(dir, e.Name()), unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		held = append(held, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	done := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(done) }()
	_, _ = fmt.Fprintln(os.Stdout, "started")
	for n := 0; ; n++ {
		select {
		case <-done:
			return nil
		default:
		}
		if err := openOnce(held[n%len(held)], unix.O_RDONLY); err != nil {
			return err
		}
	}
}

func job(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	// With the race detector, each process would otherwise stay for another second.
	cmd.Env = append(os.Environ(), jobVariable+"="+name, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// startStorm starts a process that opens the files of a directory, and returns when it is running. stop ends it.
func startStorm(t testing.TB, dir string) (stop func()) {
	t.Helper()
	cmd := job("storm", dir)
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	must.Do(t, errors.Join(inErr, outErr, cmd.Start()))
	_, _ = out.Read(make([]byte, 1))
	return func() {
		t.Helper()
		in.Close()
		expect.Is(t, "the end of the opener", cmd.Wait(), nil)
	}
}

// recorder keeps what a watch reports.
type recorder struct {
	mu    sync.Mutex
	files []string
	calls int
	// ended says why the watch was ended.
	ended error
}

func (r *recorder) opened(files []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = append(r.files, files...)
	r.calls++
}

func (r *recorder) lost(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = err
}

func (r *recorder) end() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// take returns what was reported since the last call.
func (r *recorder) take() (files []string, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	files, calls = r.files, r.calls
	r.files, r.calls = nil, 0
	return files, calls
}

// volume is a tmpfs with a group that nobody runs. want drains it. If owner is empty, the volume is the only one of
// its owner.
type volume struct {
	testing.TB
	group     *Group
	path      string
	owner     string
	overflows int
}

func newVolume(t testing.TB) *volume {
	t.Helper()
	v := &volume{TB: t, path: mountTmpfs(t)}
	v.group = New(func() { v.overflows++ })
	t.Cleanup(func() { v.group.Close() })
	v.group.mu.Lock()
	defer v.group.mu.Unlock()
	err := v.group.make()
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	v.must(err)
	return v
}

func mountTmpfs(t testing.TB) string {
	t.Helper()
	path := t.TempDir()
	(&volume{TB: t}).must(unix.Mount("volume", path, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

func (v *volume) dir(path string, files ...string) *os.File {
	v.Helper()
	v.must(os.MkdirAll(filepath.Join(v.path, path), 0o755))
	for _, name := range files {
		v.must(os.WriteFile(filepath.Join(v.path, path, name), []byte("text"), 0o644))
	}
	return v.open(path)
}

func (v *volume) open(path string) *os.File {
	v.Helper()
	f := must.Get(os.Open(filepath.Join(v.path, path)))(v)
	v.Cleanup(func() { f.Close() })
	return f
}

func (v *volume) watch() (stop func(), r *recorder) {
	v.Helper()
	r = &recorder{}
	dir := must.Get(os.Open(v.path))(v)
	defer dir.Close()
	return must.Get(v.group.Watch(int(dir.Fd()), cmp.Or(v.owner, v.path), r.opened, r.lost))(v), r
}

func (v *volume) beside() *volume { return &volume{TB: v.TB, path: mountTmpfs(v.TB), group: v.group} }

func (v *volume) id(path string) string {
	v.Helper()
	return must.Get(v.group.ID(unix.AT_FDCWD, filepath.Join(v.path, path)))(v)
}

func (v *volume) must(err error) {
	v.Helper()
	must.Do(v, err)
}

// reportsLate watches a directory with the files key and other. The first report closes taken, and ends when report is closed.
func (v *volume) reportsLate() (taken, report chan struct{}, reported *[]string) {
	v.Helper()
	dir := v.dir("1", "key", "other")
	taken, report, reported = make(chan struct{}), make(chan struct{}), &[]string{}
	must.Get(v.group.Watch(int(dir.Fd()), "", func(files []string) {
		if len(*reported) == 0 {
			close(taken)
			<-report
		}
		*reported = append(*reported, files...)
	}, func(error) {}))(v)
	return taken, report, reported
}

// ignore is Ignore for a test that needs no position.
func (v *volume) ignore(file int) error {
	_, err := v.group.Ignore(file)
	return err
}

func (v *volume) cat(paths ...string) {
	v.Helper()
	cmd := exec.Command("cat", paths...)
	cmd.Dir = v.path
	run(v, cmd)
}

// want drains the group, and checks which files were reported since the last call.
func (v *volume) want(r *recorder, paths ...string) {
	v.Helper()
	var ids []string
	for _, path := range paths {
		ids = append(ids, v.id(path))
	}
	v.must(v.group.Drain(drainTime))
	got, _ := r.take()
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		v.Errorf("reported as opened: %q, want %q, of %q", got, ids, paths)
	}
}

func (v *volume) marks() int {
	v.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", v.group.fd)))(v)
	return strings.Count(string(text), "fanotify ino:") + strings.Count(string(text), "fanotify sdev:")
}
