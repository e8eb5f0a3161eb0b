package integration

import (
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// delegation is what F_SETDELEG takes, since Linux 6.19.
type delegation struct {
	_ uint32
	kind,
	_ uint16
}

const setDelegation = 1024 + 16 // F_SETDELEG

// delegate has this process hold a delegation on the volume's directory, as a container may that runs as
// its owner. The returned function ends it. It skips the test where the kernel has none.
func delegate(t *testing.T, dir string) (end func()) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	d := delegation{kind: unix.F_RDLCK}
	_, _, errno := unix.Syscall(unix.SYS_FCNTL, f.Fd(), setDelegation, uintptr(unsafe.Pointer(&d)))
	if errors.Is(errno, unix.EINVAL) {
		t.Skip("SKIP: needs delegations, of Linux 6.19; make test-kernels KERNELS=newest has them")
	}
	if errno != 0 {
		t.Fatalf("hold a delegation on %s: %v", dir, errno)
	}
	return func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Containers that hold delegations on their volumes' directories delay the updates of these, and of no
// other volume.
func TestDelegations(t *testing.T) {
	const hostile = 8
	const later = 30 * time.Second // on an emulated processor; a delegation holds a write up for 45 s
	n := newNode(t)
	n.configMap("app", map[string]string{"key": "1"})
	plain := n.published("app")
	var volumes []*harness.Volume
	var ends []func()
	for range hostile {
		v := n.published("app")
		volumes, ends = append(volumes, v), append(ends, delegate(t, n.Target(v)))
	}
	since := time.Now()
	n.configMap("app", map[string]string{"key": "2"})
	n.arrives(plain, "key", "2", later)
	n.configMap("app", map[string]string{"key": "3"})
	n.arrives(plain, "key", "3", later)
	took := time.Since(since)
	for _, v := range volumes {
		n.wantContent(v, "key", "1") // else nothing was held up
	}
	t.Logf("two updates took %s beside %d volumes whose writes hang", took, hostile)

	for _, end := range ends {
		end()
	}
	for _, v := range volumes {
		n.arrives(v, "key", "3", time.Minute)
	}
	n.unpublishAll(append(volumes, plain))
}
