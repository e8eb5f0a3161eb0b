package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// parentVariable makes the test binary the parent in TestChildDiesWithItsParent.
const parentVariable = "PROCESS_TEST_PARENT_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(parentVariable); log != "" {
		beParent(log)
	}
	goleak.VerifyTestMain(m)
}

// beParent starts a child, tells its pid, and waits to be killed.
func beParent(log string) {
	p, err := Start(Options{Path: "/bin/sleep", Args: []string{"600"}, Log: log})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	<-p.Done()
	os.Exit(1)
}

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Options{
		Path: "/bin/sh",
		Args: []string{"-c", script},
		Log:  filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestChildDiesWithItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"="+filepath.Join(t.TempDir(), "log"))
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if !running(pid) {
		t.Fatalf("child %d is not running before its parent is killed", pid)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := parent.Wait(); err == nil {
		t.Fatal("parent ended with status 0")
	}
	ctx := within(t, time.Minute)
	for tick := time.NewTicker(10 * time.Millisecond); running(pid); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("child %d outlives its parent", pid)
		}
	}
}

// running tells whether a process is there and no zombie: nobody may have reaped an
// orphan yet.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func TestAwait(t *testing.T) {
	notYet := errors.New("not yet")
	t.Run("ready", func(t *testing.T) {
		p, calls := shell(t, "sleep 600"), 0
		err := p.Await(within(t, time.Minute), func(context.Context) error {
			if calls++; calls < 3 {
				return notYet
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("child ends", func(t *testing.T) {
		p := shell(t, "echo no such luck; exit 3")
		err := p.Await(within(t, time.Minute), func(context.Context) error { return notYet })
		for _, want := range []string{"exit status 3", "not yet", "no such luck"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error = %v, want %q in it", err, want)
			}
		}
		if p.ExitCode() != 3 {
			t.Errorf("exit code = %d, want 3", p.ExitCode())
		}
	})
	t.Run("time is up", func(t *testing.T) {
		p := shell(t, "sleep 600")
		err := p.Await(within(t, 50*time.Millisecond), func(context.Context) error { return notYet })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, notYet) {
			t.Errorf("error = %v, want the deadline and the last answer", err)
		}
	})
}

func TestStop(t *testing.T) {
	t.Run("ends on the signal", func(t *testing.T) {
		p := shell(t, "exec sleep 600")
		if err := p.Stop(within(t, time.Minute), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if p.ExitCode() != -1 {
			t.Errorf("exit code = %d, want -1 after a signal", p.ExitCode())
		}
	})
	t.Run("deaf to the signal", func(t *testing.T) {
		p := shell(t, "trap '' TERM; echo deaf; while :; do sleep 1; done")
		ready := func(context.Context) error {
			if Tail(p.log, 1) != "deaf" {
				return errors.New("no trap yet")
			}
			return nil
		}
		if err := p.Await(within(t, time.Minute), ready); err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(within(t, 50*time.Millisecond), syscall.SIGTERM); err == nil {
			t.Error("Stop told nothing of a child that had to be killed")
		}
		if running(p.PID()) {
			t.Error("the child is still there")
		}
	})
	t.Run("already ended", func(t *testing.T) {
		p := shell(t, "exit 0")
		<-p.Done()
		if err := p.Stop(within(t, time.Minute), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
}

func TestStartRefuses(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for name, o := range map[string]Options{
		"relative path": {Path: "sleep", Log: log},
		"no log":        {Path: "/bin/sleep"},
		"no program":    {Path: "/no/such/program", Log: log},
		"thread":        {Path: "/bin/sleep", Log: log, BeforeFork: func() error { return errors.New("no") }},
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := Start(o); err == nil {
				t.Errorf("started %d", p.PID())
			}
		})
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", tailBytes)
	for _, tc := range []struct{ name, content, want string }{
		{"fewer lines", "a\nb\n", "a\nb"},
		{"more lines", "a\nb\nc\nd\n", "c\nd"},
		{"no newline at the end", "a\nb\nc", "b\nc"},
		{"empty", "", ""},
		{"longer than what is read", "first\n" + long + "\nlast\n", long[:tailBytes-6] + "\nlast"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := Tail(path, 2); got != tc.want {
				t.Errorf("got %d bytes %.40q, want %d bytes %.40q", len(got), got, len(tc.want), tc.want)
			}
		})
	}
	if got := Tail(path+".none", 2); !strings.Contains(got, "no such file") {
		t.Errorf("of a missing file: %q", got)
	}
}
