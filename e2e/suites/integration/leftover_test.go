package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestSomethingMountedOnAFile has an administrator mount something on a file of a volume, so that
// the kernel lets nobody remove it. The volume is updated all the same, also by a plugin that
// has just started, and it is told once what stays behind.
func TestSomethingMountedOnAFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	next := func() string {
		value := n.canary()
		n.configMap("app", map[string]string{"key": value, "other": "1"})
		return value
	}
	next()
	v := n.published("app")
	generation, err := filepath.EvalSymlinks(filepath.Join(n.Target(v), "..data"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(generation, "key")
	if err := unix.Mount(os.DevNull, file, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	umount := sync.OnceFunc(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(umount)

	const text = ": device or resource busy"
	n.arrives(v, "key", next(), soon)
	n.wantProblem(v, text)
	for range 3 {
		n.arrives(v, "key", next(), soon)
		n.hasCondition(v, text)
	}
	if events := n.eventsOf(v, "VolumeUpdateFailed"); len(events) != 1 {
		t.Errorf("%d events: %+v", len(events), events)
	}
	log := n.log()
	if lines := bytes.Count(log, []byte("Volume does not show what it should")); lines != 1 {
		t.Errorf("logged %d times", lines)
	}
	if left, err := os.ReadDir(generation); err != nil || len(left) != 1 {
		t.Errorf("of the generation %v are left, %v, want the file alone", left, err)
	}

	n.mustKill()
	value := next()
	n.mustStart()
	n.arrives(v, "key", value, afterRestart)
	n.hasCondition(v, text)
	umount()
	n.hasCondition(v, "")
	harness.Eventually(t, afterCause, func() error { return n.pruned(v) })
	n.wantContent(v, "key", value)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
