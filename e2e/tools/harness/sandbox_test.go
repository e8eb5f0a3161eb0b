package harness

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMountsCanBeMade(t *testing.T) {
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
