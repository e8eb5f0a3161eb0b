package integration

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// afterRestart is how long a change may take to show after a restart of the plugin, on a
// busy machine; TestKilledPlugin is about how long it takes.
const afterRestart = soon

func TestKilledPlugin(t *testing.T) {
	n := newNode(t)
	keep, before := n.canary(), n.canary()
	n.configMap("keep", map[string]string{"key": keep})
	n.configMap("app", map[string]string{"key": before})
	kept, v := n.short("keep"), n.short("app")
	n.mustPublish(kept)
	n.mustPublish(v)

	n.mustKill()
	n.wantContent(kept, "key", keep)
	n.wantContent(v, "key", before)
	meanwhile := n.canary()
	n.configMap("app", map[string]string{"key": meanwhile})
	begin := time.Now()
	n.mustStart()
	serving := time.Since(begin)
	n.arrives(v, "key", meanwhile, afterRestart)
	took := time.Since(begin)
	bareBegin := time.Now()
	if _, err := harness.WatchBare(t.Context(), shared.Client(), n.namespace, "app"); err != nil {
		t.Fatal(err)
	}
	bare := time.Since(bareBegin)
	t.Logf("what changed meanwhile showed %s after the start, which took %s; a watch of the test's own began in %s", took, serving, bare)
	if limit := 5*time.Second + serving + 10*bare; took > limit {
		t.Errorf("what changed meanwhile showed %s after the start, want %s at most", took, limit)
	}
	after := n.canary()
	n.configMap("app", map[string]string{"key": after})
	n.arrives(v, "key", after, afterRestart)
	n.wantContent(kept, "key", keep)
	n.wantMounts(2)

	n.mustPublish(v) // as the kubelet does after its own restart
	n.wantMounts(2)
	n.mustUnpublish(v)
	n.mustUnpublish(kept)
	n.wantNothingLeft()
}

// reboot ends the plugin and all mounts, and keeps what is on the disk.
func (n *node) reboot() {
	n.t.Helper()
	n.mustKill()
	mounts, err := n.VolumeMounts()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range mounts {
		if err := unix.Unmount(m.Target, unix.MNT_DETACH); err != nil {
			n.t.Fatal(err)
		}
	}
	n.mustStart()
}

func TestReboot(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	stays, goes := n.short("app"), n.short("app")
	n.mustPublish(stays)
	n.mustPublish(goes)
	n.reboot()
	n.wantMounts(0)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	n.mustPublish(stays)
	n.wantContent(stays, "key", value)
	n.wantMounts(1)
	n.mustUnpublish(goes) // its pod was deleted meanwhile
	n.mustUnpublish(stays)
	n.wantNothingLeft()
}

// restartWith ends the plugin and starts it again with more flags, as a rollout does.
func (n *node) restartWith(args ...string) {
	n.t.Helper()
	if err := n.Terminate(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	n.AddArgs(args...)
	n.mustStart()
}

// kernelCounts returns what volumes take by the kernel's count, 1 KiB for each inode.
func (n *node) kernelCounts(volumes ...*harness.Volume) (bytes int64) {
	n.t.Helper()
	for _, v := range volumes {
		var fs unix.Statfs_t
		if err := unix.Statfs(n.Target(v), &fs); err != nil {
			n.t.Fatal(err)
		}
		bytes += int64(fs.Blocks-fs.Bfree)*fs.Bsize + int64(fs.Files-fs.Ffree)<<10
	}
	return bytes
}

// The kubelet repeats an unpublish whose answer it lost: each further one succeeds too,
// of the same process, of the next one, and after a reboot. A target that is left fails
// mustUnpublish.
func TestUnpublishAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	v, rebooted := n.short("app"), n.short("app")
	n.mustPublish(v)
	n.mustPublish(rebooted)
	n.mustUnpublish(v)
	n.mustUnpublish(v)
	n.wantMounts(1)
	n.mustKill()
	n.mustStart()
	n.mustUnpublish(v)
	n.wantMounts(1)
	n.reboot()
	for range 3 {
		n.mustUnpublish(rebooted)
	}
	n.wantNothingLeft()
}
