package receipts

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProbeFindsSupport, and leaves nothing.
func TestProbeFindsSupport(t *testing.T) {
	v := unlimited(t) // skips where there is none
	dir := v.dir("1")
	for range 2 {
		v.must(Probe(int(dir.Fd())))
	}
	if entries, err := os.ReadDir(v.path + "/1"); err != nil || len(entries) > 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

// TestProbeSaysWhatLacks where opens can't be watched.
func TestProbeSaysWhatLacks(t *testing.T) {
	v := unlimited(t)
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
