package room

import (
	"fmt"
	"os"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// pageSize is the unit in which the inodes of a volume are calculated. On kernels with larger pages the number stays the same.
	pageSize = 4096
	// inodeSize is what an inode counts towards the node's total, in bytes. The kernel needs about that much for an inode and its name, also
	// for an empty file.
	inodeSize = 1024
	// podShare is the divisor for the share of one pod: the volumes of a pod may together hold an eighth of the node's total, but at least the
	// size of one volume.
	podShare = 8
)

// MemoryOf returns how many bytes file contents and inodes count towards the node's total.
func MemoryOf(bytes, inodes int64) int64 { return bytes + inodes*inodeSize }

// FilesOf returns how many files a volume of a size in bytes may have, by their inodes.
func FilesOf(size int64) int64 { return size / inodeSize }

// Limits are the limits of one volume's file system. A volume may hold two generations while it changes from one to the next, so the file
// system has room for two. A generation within its limit can only fail to be written while readers hold files of an earlier one open: their
// pages stay until they are closed.
type Limits struct {
	// Bytes and Inodes limit one generation. Files limits the files that a volume shows, and the items that its spec lists.
	Bytes, Inodes, Files int64
	// MountBytes and MountInodes are the options of the tmpfs.
	MountBytes, MountInodes int64
}

// limitsFor derives the limits from the maximum size of a volume in bytes. A file takes one page unless it is empty, so a quarter of the
// inodes is enough for files of one page each. The rest is for their links, for directories, and for empty files. The spare inodes of the
// file system are for its root and for records: the kernel may take an inode for each KiB of a record, and there can be three records,
// those of two generations and a new one.
func limitsFor(maxVolumeSize int64) Limits {
	const (
		spare = 1024
		// most is the largest size with which the derived limits still fit.
		most = 1 << 60
	)
	size := min(maxVolumeSize, most)
	l := Limits{Bytes: size, Inodes: 4*(size/pageSize) + spare, Files: (size + pageSize - 1) / pageSize}
	l.MountBytes = 2*l.Bytes + 64*int64(os.Getpagesize())
	l.MountInodes = 2*l.Inodes + spare
	return l
}

// CheckTree returns an error if the files of a volume take more bytes of memory or more inodes than any volume may have.
func (l Limits) CheckTree(bytes, inodes int64) error {
	if bytes > l.Bytes {
		return fmt.Errorf("the files take %d bytes of memory, more than the %d bytes that a volume may have (--max-volume-size)", bytes, l.Bytes)
	}
	if inodes > l.Inodes {
		return fmt.Errorf("the files take %d inodes, more than the %d that a volume may have (they follow --max-volume-size)", inodes, l.Inodes)
	}
	return nil
}

// CheckItems returns an error if a spec has too many items. Each volume keeps its list of items.
func (l Limits) CheckItems(n int) error {
	if int64(n) > l.Files {
		return fmt.Errorf("the volume has %d items, more than %d: one for each page of %d bytes of --max-volume-size", n, l.Files, pageSize)
	}
	return nil
}

// checkNames returns an error if the volumes of a pod name too much together. others is what the pod's other volumes name.
func (l Limits) checkNames(n, others volume.Names) error {
	for _, limit := range volume.PodLimits(n.Plus(others), l.Files) {
		if has, rest := limit.Count(n), limit.Count(others); has+rest > limit.Most {
			return fmt.Errorf("Too many: the volume names %d %s, the pod's other volumes %d, and all volumes of a pod may name %d: %d are left; %s",
				has, limit.What, rest, limit.Most, max(limit.Most-rest, 0), limit.Fix)
		}
	}
	return nil
}
