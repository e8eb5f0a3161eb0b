package receipts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProbeFindsSupport and leaves nothing behind.
func TestProbeFindsSupport(t *testing.T) {
	v := newVolume(t) // skips if there is no support
	dir := v.dir("1")
	for range 2 {
		if reads, err := probe(int(dir.Fd())); reads != 2 || err != nil {
			t.Errorf("it has read the queue %d times: %v", reads, err)
		}
	}
	if entries, err := os.ReadDir(v.path + "/1"); err != nil || len(entries) > 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

// TestProbeOfTheFirstProcess: the plugin has the ID 1 in its container.
func TestProbeOfTheFirstProcess(t *testing.T) {
	v := newVolume(t)
	v.dir("1")
	exe, err := os.Executable()
	v.must(err)
	first := exec.Command("unshare", "-pf", exe, v.path+"/1")
	first.Env = job("probe").Env
	run(t, first)
}

// TestProbeKnowsTheKernel: it finds support from Linux 6.0 on. On older kernels it says that this is missing.
func TestProbeKnowsTheKernel(t *testing.T) {
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		t.Fatal(err)
	}
	release, major := unix.ByteSliceToString(system.Release[:]), 0
	if _, err := fmt.Sscanf(release, "%d.", &major); err != nil {
		t.Fatalf("release %q: %v", release, err)
	}
	dir, err := os.Open(mountTmpfs(t))
	if err != nil {
		t.Fatal(err)
	}
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
	exe, err := os.Executable()
	v.must(err)
	unshared := exec.Command("unshare", "-Ur", exe, v.path+"/1")
	unshared.Env = job("probe").Env
	out, err := unshared.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make a fanotify group: operation not permitted (CAP_SYS_ADMIN is needed, and not in a user namespace)") {
		t.Errorf("in a user namespace: %v, %s", err, out)
	}
	if err := Probe(int(v.open("1/key").Fd())); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("of a file: %v", err)
	}
	bind(v, v.path, v.path)
	if err := Probe(int(v.open("1").Fd())); !errors.Is(err, unix.EROFS) {
		t.Errorf("where nothing can be made: %v", err)
	}
}
