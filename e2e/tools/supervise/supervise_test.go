package supervise_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/process"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// workerVariable makes this program the one that is supervised.
const workerVariable = "REFVOL_SUPERVISED"

func TestMain(m *testing.M) {
	if dir := os.Getenv(workerVariable); dir != "" {
		work(dir)
		os.Exit(0)
	}
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}

const (
	threads   = 8
	perThread = 25
)

// work makes directories from several threads at once, each with calls of its own, and
// does much beside that is not to be counted.
func work(dir string) {
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			for j := range perThread {
				if err := unix.Mkdirat(unix.AT_FDCWD, filepath.Join(dir, fmt.Sprintf("%d-%d", i, j)), 0o700); err != nil {
					fmt.Println(err)
				}
				_, _ = os.ReadFile("/proc/self/status")
				fmt.Println("logged")
				runtime.GC() // interrupts the other threads
			}
		})
	}
	wg.Wait()
}

// run runs the worker, or a shell where script is not empty, to its end. The calls of
// the start of a program are not counted: the scripts begin with a colon.
func run(t *testing.T, s *supervise.Supervisor, dir, script string) *process.Process {
	t.Helper()
	o := process.Options{
		Path:       os.Args[0],
		Env:        append(os.Environ(), workerVariable+"="+dir),
		Log:        filepath.Join(t.TempDir(), "log"),
		BeforeFork: s.BeforeFork,
	}
	if script != "" {
		o.Path, o.Args, o.Env = "/bin/sh", []string{"-c", script}, nil
	}
	p, err := process.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatalf("the process hangs: %s", process.Tail(o.Log, 20))
	}
	return p
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestCountsTheWholeProcess(t *testing.T) {
	dir := t.TempDir()
	s := supervise.New(dir)
	s.Arm(supervise.CountOnly)
	if p := run(t, s, dir, ""); p.ExitCode() != 0 {
		t.Errorf("exit code = %d", p.ExitCode())
	}
	calls, killed := s.Disarm()
	for _, c := range calls {
		if !strings.HasPrefix(c.Name, "mkdir") || filepath.Dir(c.Path) != dir {
			t.Errorf("counted %s", c)
		}
	}
	if made := entries(t, dir); len(calls) != threads*perThread || made != len(calls) || killed {
		t.Errorf("%d calls counted, %d directories made, want %d (killed: %t)", len(calls), made, threads*perThread, killed)
	}
}

func TestKillsAtTheNthCall(t *testing.T) {
	for _, nth := range []int{1, 2, 50, 199} {
		dir := t.TempDir()
		s := supervise.New(dir)
		s.Arm(supervise.KillAt(nth))
		if p := run(t, s, dir, ""); p.ExitCode() != -1 {
			t.Errorf("at %d: exit code = %d, want the signal's", nth, p.ExitCode())
		}
		calls, killed := s.Disarm()
		// A call that may go on dies with the process if that is killed before it begins.
		if made := entries(t, dir); len(calls) != nth || made > nth-1 || made < nth-threads || !killed {
			t.Errorf("at %d: %d calls counted, %d directories made (killed: %t)", nth, len(calls), made, killed)
		}
	}
}

func TestDecideRunsBeforeTheCall(t *testing.T) {
	dir := t.TempDir()
	s := supervise.New(dir)
	var seen []int
	s.Arm(func(n int, _ supervise.Call) bool {
		seen = append(seen, entries(t, dir))
		return false
	})
	run(t, s, dir, fmt.Sprintf("umask 77; : >%[1]s/1; : >%[1]s/2; : >%[1]s/3", dir))
	s.Disarm()
	if !slices.Equal(seen, []int{0, 1, 2}) {
		t.Errorf("files there before each call: %v, want one fewer than after it", seen)
	}
}
