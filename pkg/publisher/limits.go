package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// pageSize is what the inodes of a volume are counted by. Where the kernel's pages are larger, there
// are no fewer.
const pageSize = 4096

// inodeSize is what an inode counts towards the node's total: the kernel takes about so much
// for it and for its name, also of an empty file.
const inodeSize = 1024

// memoryOf returns what pages and inodes count towards the node's total.
func memoryOf(bytes, inodes int64) int64 { return bytes + inodes*inodeSize }

// limits are those of one volume's file system. A volume may hold two generations
// while it changes from one to the next, so the file system is made for two. A
// generation that fits its limit can fail to be written only while readers hold
// files of an earlier one open, whose pages stay until they are closed.
type limits struct {
	// bytes and inodes bound one generation.
	bytes, inodes int64
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
	l := limits{bytes: size, inodes: 4*(size/pageSize) + spare}
	l.mountBytes = 2*l.bytes + 64*int64(os.Getpagesize())
	l.mountInodes = 2*l.inodes + spare
	return l
}

// makeRoom counts what a tree takes for a volume, in place of what was counted before, and
// returns how to take that back. It fails if the tree is over a limit, unless it takes
// no more than what the files take that are there: they may be from before a limit was lowered.
// They are looked at only then. The caller holds the lock of the contents.
func (v *published) makeRoom(ctx context.Context, mnt Mount, tree *volume.Tree) (undo func(), err error) {
	size := writer.Measure(tree)
	undo, err = v.reserve(size, writer.Footprint{})
	if err == nil {
		return undo, nil
	}
	has, lookErr := v.contents.writer.Size(ctx, mnt.Root())
	if lookErr != nil {
		return nil, errors.Join(err, fmt.Errorf("measure the files of volume %s: %w", v.request.VolumeID, lookErr))
	}
	return v.reserve(size, has)
}

// reserve counts what a volume is to take, in place of what was counted before, and returns how
// to take that back. It fails if that is over a limit, and more than has.
func (v *published) reserve(size, has writer.Footprint) (undo func(), err error) {
	if size.Bytes > max(v.p.limits.bytes, has.Bytes) {
		return nil, fail(ReasonTooLarge, "the files take %d bytes of memory, more than the %d bytes that a volume may have (--max-volume-size)", size.Bytes, v.p.limits.bytes)
	}
	if size.Inodes > max(v.p.limits.inodes, has.Inodes) {
		return nil, fail(ReasonTooLarge, "the files take %d inodes, more than the %d that a volume may have (they follow --max-volume-size)", size.Inodes, v.p.limits.inodes)
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	before, takes := v.size, memoryOf(size.Bytes, size.Inodes)
	if others := v.p.used - before; takes > max(before, memoryOf(has.Bytes, has.Inodes)) && others+takes > v.p.opts.MaxTotalSize {
		return nil, fail(ReasonNodeFull, "the files and their inodes take %d bytes of memory, the node's other volumes %d, together more than %d (--max-total-size)", takes, others, v.p.opts.MaxTotalSize)
	}
	v.count(takes)
	return func() {
		v.p.mu.Lock()
		defer v.p.mu.Unlock()
		v.count(before)
	}, nil
}

// count sets what is counted for a volume, if it is still known. The caller holds
// Publisher.mu.
func (v *published) count(bytes int64) {
	if v.p.volumes[v.request.VolumeID] != v {
		return
	}
	v.p.used += bytes - v.size
	v.size = bytes
}
