package integration

import (
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
