package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// restartWith ends the plugin and starts it again with more flags, as a rollout does.
func (n *node) restartWith(args ...string) {
	n.t.Helper()
	if err := n.Terminate(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	n.AddArgs(args...)
	n.mustStart()
}

// TestChangedVolumeLimit restarts the plugin with a larger --max-volume-size and then with the
// first one again. New volumes follow, and what is mounted keeps its room.
func TestChangedVolumeLimit(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "--max-volume-size=64Ki")
			v := n.volume(map[string]string{"configMap": "app", "writeStrategy": strategy})
			sized := func(size int) string {
				value := n.canary()
				value += strings.Repeat("x", size-len(value))
				n.configMap("app", map[string]string{"key": value})
				return value
			}
			refused := func(shown string) {
				t.Helper()
				n.hasCondition(v, "more than the 65536 bytes that a volume may have (--max-volume-size)")
				n.wantContent(v, "key", shown)
			}
			small := sized(1 << 10)
			n.mustPublish(v)
			large := sized(450 << 10)
			refused(small)

			// A raised limit is for new volumes: this one keeps its file system.
			n.restartWith("--max-volume-size=512Ki")
			n.hasCondition(v, "no space left on device")
			n.wantContent(v, "key", small)
			w := n.volume(map[string]string{"configMap": "app", "writeStrategy": strategy})
			n.mustPublish(w)
			n.wantContent(w, "key", large)
			n.mustUnpublish(w)

			n.restartWith("--max-volume-size=64Ki")
			refused(small)
			small = sized(1 << 10)
			n.arrives(v, "key", small, afterCause)
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
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
