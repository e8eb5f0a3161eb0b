package receipts

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestAGroupIsTriedAgain if the node has too many groups, and the error names the limit. The kernel counts the groups of each user. So the test
// runs as a user of its own, and takes no group from what runs beside it.
func TestAGroupIsTriedAgain(t *testing.T) {
	v := newVolume(t)
	if os.Getenv(takenVariable) == "" {
		v.must(v.group.Close())
		runAsAnotherUser(t)
		return
	}
	dir := int(v.dir("1", "key").Fd())
	var groups []int
	defer func() {
		for _, fd := range groups {
			unix.Close(fd)
		}
	}()
	// takeAll takes all groups that are free.
	takeAll := func() {
		for {
			fd, err := unix.FanotifyInit(groupFlags, 0)
			if errors.Is(err, unix.EMFILE) {
				return
			}
			v.must(err)
			if groups = append(groups, fd); len(groups) > 10_000 {
				t.Skip("this machine has no limit of groups")
			}
		}
	}
	takeAll()
	reportTaken(t)
	synctest.Test(t, func(t *testing.T) {
		g := New(func() {})
		defer g.Close()
		_, err := g.Watch(dir, "", nil, nil)
		if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "fs.fanotify.max_user_groups") {
			t.Errorf("got %v", err)
		}
		refused := func(after time.Duration, tried bool) {
			t.Helper()
			<-time.After(after)
			takeAll()
			_, again := g.Watch(dir, "", nil, nil)
			if !errors.Is(again, unix.EMFILE) || (again != err) != tried { //nolint:errorlint // each try has an error of its own
				t.Errorf("after %s it is refused by %v, want a new try: %t", after, again, tried)
			}
			err = again
		}
		refused(retryMin-time.Second, false)
		refused(time.Second, true)
		refused(2*retryMin-time.Second, false)
		unix.Close(groups[0])
		groups = groups[1:]
		<-time.After(time.Second)
		if _, err := g.Watch(dir, "", func([]string) {}, nil); err != nil {
			t.Error(err)
		}
	})
}

const (
	// takenVariable says that this process is the one that runAsAnotherUser starts.
	takenVariable = "REFVOL_RECEIPTS_TAKEN"
	// In that process, taken is closed when all groups are taken, and goOn is closed when the parent has created one.
	taken, goOn = 3, 4
)

// runAsAnotherUser runs the current test in another process, as a user who has no groups yet. It checks that this user can create a group
// when the other one has all of its groups.
func runAsAnotherUser(t *testing.T) {
	t.Helper()
	takenEnd, takenReport := pipe(t)
	goOnEnd, goOnReport := pipe(t)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), takenVariable+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles = []*os.File{takenReport, goOnEnd}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: 1<<30 + rand.Uint32N(1<<30)},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH},
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	takenReport.Close()
	_, _ = io.Copy(io.Discard, takenEnd)
	beside := canCreateGroup()
	goOnReport.Close()
	err := cmd.Wait()
	if beside != nil {
		t.Errorf("beside a user who has all of its groups: %v", beside)
	}
	if strings.Contains(out.String(), "--- SKIP: "+t.Name()) {
		t.Skip(out.String())
	}
	if err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// canCreateGroup returns nil if this process can create a group.
func canCreateGroup() error {
	g := New(func() {})
	defer g.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.make()
}

// reportTaken reports that all groups are taken, and waits until the parent has created one.
func reportTaken(t *testing.T) {
	t.Helper()
	if err := os.NewFile(taken, "taken").Close(); err != nil {
		t.Fatal(err)
	}
	end := os.NewFile(goOn, "go on")
	defer end.Close()
	_, _ = io.Copy(io.Discard, end)
}

func pipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(); writer.Close() })
	return reader, writer
}
