package publisher

import (
	"os"

	"github.com/refvol/refvol/pkg/writer"
)

// pageSize is the unit in which the inodes of a volume are calculated. On kernels with larger pages the number stays the same.
const pageSize = 4096

// inodeSize is what an inode counts towards the node's total, in bytes. The kernel needs about that much for an inode and its name, also
// for an empty file.
const inodeSize = 1024

// podShare is the divisor for the share of one pod: the volumes of a pod may together hold an eighth of the node's total, but at least the
// size of one volume.
const podShare = 8

// memoryOf returns how many bytes file contents and inodes count towards the node's total.
func memoryOf(bytes, inodes int64) int64 { return bytes + inodes*inodeSize }

// limits are the limits of one volume's file system. A volume may hold two generations while it changes from one to the next, so the file
// system has room for two. A generation within its limit can only fail to be written while readers hold files of an earlier one open: their
// pages stay until they are closed.
type limits struct {
	// bytes and inodes limit one generation. files limits the files that a volume shows, and the items that its spec lists.
	bytes, inodes, files int64
	// mountBytes and mountInodes are the options of the tmpfs.
	mountBytes, mountInodes int64
}

// limitsFor derives the limits from the maximum size of a volume in bytes. A file takes one page unless it is empty, so a quarter of the
// inodes is enough for files of one page each. The rest is for their links, for directories, and for empty files. The spare inodes of the
// file system are for its root and for records: the kernel may take an inode for each KiB of a record, and there can be three records,
// those of two generations and a new one.
func limitsFor(maxVolumeSize int64) limits {
	const (
		spare = 1024
		// most is the largest size with which the derived limits still fit.
		most = 1 << 60
	)
	size := min(maxVolumeSize, most)
	l := limits{bytes: size, inodes: 4*(size/pageSize) + spare, files: (size + pageSize - 1) / pageSize}
	l.mountBytes = 2*l.bytes + 64*int64(os.Getpagesize())
	l.mountInodes = 2*l.inodes + spare
	return l
}

// overhead returns how many inodes a volume needs at most beyond its Footprint: its root, and the attributes of the root and of the
// generation. Newer kernels count attributes as inodes.
func overhead(record string) int64 {
	const bytesPerInode, rootAttributes = 1024, 1024
	return 1 + (rootAttributes+int64(len(record))+bytesPerInode-1)/bytesPerInode
}

// check returns a failure if a tree is larger than any volume may be.
func (l limits) check(size writer.Footprint) *failure {
	if size.Bytes > l.bytes {
		return final(ReasonTooLarge, "the files take %d bytes of memory, more than the %d bytes that a volume may have (--max-volume-size)", size.Bytes, l.bytes)
	}
	if size.Inodes > l.inodes {
		return final(ReasonTooLarge, "the files take %d inodes, more than the %d that a volume may have (they follow --max-volume-size)", size.Inodes, l.inodes)
	}
	return nil
}

// checkItems returns a failure if a spec has too many items. Each volume keeps its list of items.
func (l limits) checkItems(n int) *failure {
	if int64(n) > l.files {
		return final(ReasonTooLarge, "the volume has %d items, more than %d: one for each page of %d bytes of --max-volume-size", n, l.files, pageSize)
	}
	return nil
}
