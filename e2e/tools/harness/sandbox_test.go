package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// outsideMounts reads the mounts of the process that made the sandbox.
func outsideMounts(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", ppid(t), "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func ppid(t *testing.T) string {
	t.Helper()
	target, err := os.Readlink("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(filepath.Join("/proc", target, "stat"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(stat)[strings.LastIndex(string(stat), ")"):])[2]
}

func TestMountsStayInside(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("canary", dir, "tmpfs", 0, ""); err != nil {
		t.Fatalf("mount in the sandbox: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	below, err := MountsBelow(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(below) != 1 || below[0].Type != "tmpfs" || below[0].Source != "canary" {
		t.Errorf("mounts seen inside = %+v, want one tmpfs from canary", below)
	}
	if strings.Contains(outsideMounts(t), dir) {
		t.Errorf("the process outside sees the mount at %s", dir)
	}
}

func TestMarkerAloneIsNoSandbox(t *testing.T) {
	here, err := os.Readlink(mountNamespace)
	if err != nil {
		t.Fatal(err)
	}
	// As if a shell had inherited the variable and started a program in the same
	// namespace: that one has to make a sandbox of its own.
	cmd := exec.Command(os.Args[0], "-test.run=^TestMountsStayInside$", "-test.count=1")
	cmd.Env = append(os.Environ(), sandboxVariable+"="+here)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestExitStatus(t *testing.T) {
	for _, tc := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"kill -KILL $$", 128 + int(syscall.SIGKILL)},
	} {
		got, err := exitStatus(exec.Command("/bin/sh", "-c", tc.script).Run())
		if err != nil || got != tc.want {
			t.Errorf("%s: status = %d, %v, want %d", tc.script, got, err, tc.want)
		}
	}
	if _, err := exitStatus(exec.Command("/no/such/program").Run()); err == nil {
		t.Error("a program that never ran has a status")
	}
}

func TestMappedGIDCanOwnFiles(t *testing.T) {
	gid, err := MappedGID()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 0, gid); err != nil {
		t.Error(err)
	}
}

func TestStockNamesWhatIsNew(t *testing.T) {
	before, err := takeStock()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	after, err := takeStock()
	if err != nil {
		t.Fatal(err)
	}
	if err := added("file descriptor", before.descriptors, after.descriptors); err == nil || !strings.Contains(err.Error(), "/dev/null") {
		t.Errorf("an open file: %v, want it named", err)
	}
	if err := added("file descriptor", after.descriptors, before.descriptors); err != nil {
		t.Errorf("a closed file: %v", err)
	}
}
