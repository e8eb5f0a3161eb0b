package receipts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

// TestProbeFindsSupport and leaves nothing behind, also in the first process: the plugin has the ID 1 in its container.
func TestProbeFindsSupport(t *testing.T) {
	v := newVolume(t) // skips if there is no support
	dir := v.dir("1")
	for range 2 {
		expect.Equal(t, "reads of the queue", must.Get(probe(int(dir.Fd())))(t), 2)
	}
	exe := must.Get(os.Executable())(v)
	first := exec.Command("unshare", "-pf", exe, v.path+"/1")
	first.Env = job("probe").Env
	run(t, first)
	expect.Equal(t, "entries", len(must.Get(os.ReadDir(v.path+"/1"))(t)), 0)
}

// TestProbeKnowsTheKernel: it finds support from Linux 6.0 on. On older kernels it says that this is missing.
func TestProbeKnowsTheKernel(t *testing.T) {
	var system unix.Utsname
	must.Do(t, unix.Uname(&system))
	release, major := unix.ByteSliceToString(system.Release[:]), 0
	if _, err := fmt.Sscanf(release, "%d.", &major); err != nil {
		t.Fatalf("release %q: %v", release, err)
	}
	dir, err := os.Open(mountTmpfs(t))
	must.Do(t, err)
	defer dir.Close()
	switch err := Probe(int(dir.Fd())); {
	case errors.Is(err, unix.EPERM):
		t.Skip(err)
	case major >= 6 && err != nil, major < 6 && (err == nil || !strings.Contains(err.Error(), "(Linux 6.0 or newer is needed)")):
		t.Errorf("on Linux %s: %v", release, err)
	default:
		t.Logf("on Linux %s: %v", release, err)
	}
}

// TestProbeSaysWhatLacks if opens cannot be watched.
func TestProbeSaysWhatLacks(t *testing.T) {
	v := newVolume(t)
	v.dir("1", "key")
	v.must(os.Chmod(v.path+"/1", 0o777))
	exe := must.Get(os.Executable())(v)
	unshared := exec.Command("unshare", "-Ur", exe, v.path+"/1")
	unshared.Env = job("probe").Env
	out, err := unshared.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make a fanotify group: operation not permitted (CAP_SYS_ADMIN is needed, and not in a user namespace)") {
		t.Errorf("in a user namespace: %v, %s", err, out)
	}
	expect.Is(t, "of a file", Probe(int(v.open("1/key").Fd())), unix.ENOTDIR)
	bind(v, v.path, v.path)
	expect.Is(t, "where nothing can be made", Probe(int(v.open("1").Fd())), unix.EROFS)
}

// TestAGroupIsTriedAgain if the node has too many groups, and the error names the limit. A process without free descriptors gets the same
// error from the kernel, and takes no group from what runs beside it.
func TestAGroupIsTriedAgain(t *testing.T) {
	v := newVolume(t)
	dir := int(v.dir("1", "key").Fd())
	var limit unix.Rlimit
	v.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	setDescriptors := func(n uint64) {
		v.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: limit.Max}))
	}
	setDescriptors(0)
	defer setDescriptors(limit.Cur)
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
			_, again := g.Watch(dir, "", nil, nil)
			if !errors.Is(again, unix.EMFILE) || (again != err) != tried { //nolint:errorlint // each try has an error of its own
				t.Errorf("after %s it is refused by %v, want a new try: %t", after, again, tried)
			}
			err = again
		}
		refused(retryMin-time.Second, false)
		refused(time.Second, true)
		refused(2*retryMin-time.Second, false)
		setDescriptors(limit.Cur)
		<-time.After(time.Second)
		must.Get(g.Watch(dir, "", func([]string) {}, nil))(t)
	})
}
