package publisher

import (
	"os"

	"github.com/refvol/refvol/pkg/writer"
)

// pageSize is what the inodes of a volume are counted by. Where the kernel's pages are larger, there
// are no fewer.
const pageSize = 4096

// inodeSize is what an inode counts towards the node's total: the kernel takes about so much
// for it and for its name, also of an empty file.
const inodeSize = 1024

// podShare is the part of the node's total that the volumes of one pod may hold together, if that is not less than one volume
// may have.
const podShare = 8

// memoryOf returns what pages and inodes count towards the node's total.
func memoryOf(bytes, inodes int64) int64 { return bytes + inodes*inodeSize }

// limits are those of one volume's file system. A volume may hold two generations
// while it changes from one to the next, so the file system is made for two. A
// generation that fits its limit can fail to be written only while readers hold
// files of an earlier one open, whose pages stay until they are closed.
type limits struct {
	// bytes and inodes bound one generation, and files what a volume shows, or its spec lists.
	bytes, inodes, files int64
	// mountBytes and mountInodes are the options of the tmpfs.
	mountBytes, mountInodes int64
}

// limitsFor derives the limits from the most bytes that a volume may take. A file
// takes a page unless it is empty, so a quarter of the inodes is enough for files
// of a page; the rest is for their links, for directories and for empty files. The spare
// inodes of the file system are for its root and for records: the kernel may take an inode
// for each KiB of one, and holds up to three, those of two generations and a new one.
func limitsFor(maxVolumeSize int64) limits {
	const (
		spare = 1024
		// What is derived of more, the kernel could not count.
		most = 1 << 60
	)
	size := min(maxVolumeSize, most)
	l := limits{bytes: size, inodes: 4*(size/pageSize) + spare, files: (size + pageSize - 1) / pageSize}
	l.mountBytes = 2*l.bytes + 64*int64(os.Getpagesize())
	l.mountInodes = 2*l.inodes + spare
	return l
}

// overhead returns how many inodes a volume takes beyond its Footprint, at most: its root, and the
// attributes of that and of the generation, which newer kernels take from the inodes.
func overhead(record string) int64 {
	const bytesPerInode, rootAttributes = 1024, 1024
	return 1 + (rootAttributes+int64(len(record))+bytesPerInode-1)/bytesPerInode
}

// check refuses a tree that no volume may have.
func (l limits) check(size writer.Footprint) *failure {
	if size.Bytes > l.bytes {
		return final(ReasonTooLarge, "the files take %d bytes of memory, more than the %d bytes that a volume may have (--max-volume-size)", size.Bytes, l.bytes)
	}
	if size.Inodes > l.inodes {
		return final(ReasonTooLarge, "the files take %d inodes, more than the %d that a volume may have (they follow --max-volume-size)", size.Inodes, l.inodes)
	}
	return nil
}

// checkItems refuses a spec of too many items. Each volume keeps its list.
func (l limits) checkItems(n int) *failure {
	if int64(n) > l.files {
		return final(ReasonTooLarge, "the volume has %d items, more than %d: one for each page of %d bytes of --max-volume-size", n, l.files, pageSize)
	}
	return nil
}
