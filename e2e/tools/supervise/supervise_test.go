package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/process"
)

// TestSignals: signals that interrupt the supervisor's wait don't end the supervision, after which all calls would
// fail. Go's runtime sends such signals when a goroutine runs for long.
func TestSignals(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIP: needs root: a filter that hands calls over needs CAP_SYS_ADMIN")
	}
	s := New("openat", "write")
	shell, err := process.Start(process.Options{
		Path: "/bin/sh", Log: filepath.Join(t.TempDir(), "log"), BeforeFork: s.BeforeFork,
		// Several processes at once, as the lock of their filter must be taken while the supervisor wants it.
		Args: []string{"-c", "exec >/dev/null; for i in 1 2 3 4 5 6 7; do (while echo call; do :; done) & done; while echo call; do :; done"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Kill(-shell.PID(), unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) { // its children too
			t.Error(err)
		}
		<-shell.Done()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for began := time.Now(); time.Since(began) < 3*time.Second && !shell.Ended(); {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Tgkill(os.Getpid(), id, syscall.SIGURG) // it may have ended
			}
		}
	}
	if shell.Ended() {
		t.Error("a call has failed, and the shell ended: ", shell.State())
	}
}
