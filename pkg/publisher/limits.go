package publisher

import (
	"context"
	"fmt"
	"os"

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

// overhead returns how many inodes a volume takes beyond its Footprint, at most: its root, and the
// attributes of that and of the generation, which newer kernels take from the inodes.
func overhead(record string) int64 {
	const bytesPerInode, rootAttributes = 1024, 1024
	return 1 + (rootAttributes+int64(len(record))+bytesPerInode-1)/bytesPerInode
}

// makeRoom frees memory for a tree that takes so much, if it is the node's total that lacks it, and returns
// what the files of the volume take: those may be from before a limit was lowered, and what takes no
// more may replace them. What is kept for readers alone is removed, and what the kernel holds is measured
// again. The caller holds the lock of the pod.
func (v *published) makeRoom(ctx context.Context, takes int64, reason Reason) (has writer.Footprint, err error) {
	fits := func() bool { return v.fits(takes) }
	if v.is(live) {
		err = v.reopen(ctx, func(mnt Mount) error {
			if reason == ReasonNodeFull {
				if err := v.measure(mnt); err != nil {
					return err
				}
				v.free(ctx, mnt, fits)
			}
			if has, err = v.contents.writer.Size(ctx, mnt.Root()); err != nil {
				return fmt.Errorf("measure the files of volume %s: %w", v.request.VolumeID, err)
			}
			return nil
		})
	}
	if reason == ReasonNodeFull {
		v.p.reclaim(ctx, v, fits)
	}
	return has, err
}

// reserve counts what a tree will take, beside what the volume holds for those who have old files open.
// It fails if that is over a limit, and more than has. What is reserved is counted until the volume is
// measured.
func (v *published) reserve(size writer.Footprint, takes int64, has writer.Footprint) error {
	if size.Bytes > max(v.p.limits.bytes, has.Bytes) {
		return fail(ReasonTooLarge, "the files take %d bytes of memory, more than the %d bytes that a volume may have (--max-volume-size)", size.Bytes, v.p.limits.bytes)
	}
	if size.Inodes > max(v.p.limits.inodes, has.Inodes) {
		return fail(ReasonTooLarge, "the files take %d inodes, more than the %d that a volume may have (they follow --max-volume-size)", size.Inodes, v.p.limits.inodes)
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if !v.fitsLocked(takes) && !v.replacesLocked(takes) {
		return v.p.full(takes, v.p.used-v.size-v.reserved)
	}
	v.charge(v.size, max(0, takes-v.tree))
	return nil
}

// unreserve ends what reserve counts, where nothing was written.
func (v *published) unreserve() {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.charge(v.size, 0)
}

// full returns why a volume finds no room. The caller holds mu.
func (p *Publisher) full(takes, others int64) error {
	held := int64(0)
	for _, v := range p.volumes {
		held += v.held()
	}
	text := ""
	if held > 0 {
		text = fmt.Sprintf("; readers hold %d bytes of old files open", held)
	}
	return fail(ReasonNodeFull, "the files and their inodes take %d bytes of memory, the node's other volumes %d, together more than %d (--max-total-size)%s", takes, others, p.opts.MaxTotalSize, text)
}

// excess is what the volume's file system holds beyond its newest tree. The caller holds
// Publisher.mu.
func (v *published) excess() int64 { return max(0, v.size-v.tree) }

// fits says whether the node's total has room for the volume's next tree.
func (v *published) fits(takes int64) bool {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	return v.fitsLocked(takes)
}

func (v *published) fitsLocked(takes int64) bool {
	return v.p.used-v.size-v.reserved+v.excess()+takes <= v.p.opts.MaxTotalSize
}

// replacesLocked says whether the volume's next tree may take the place of the present one on a node whose
// newest trees alone are over the total, as after that was lowered. Where it is readers of old files who take the
// room, each replaced file could be one more that they hold.
func (v *published) replacesLocked(takes int64) bool {
	if takes > v.tree || v.excess() > 0 {
		return false
	}
	trees := int64(0)
	for _, other := range v.p.volumes {
		if other.known() {
			trees += min(other.size, other.tree)
		} else {
			trees += other.size
		}
	}
	return trees > v.p.opts.MaxTotalSize
}

// charge sets what is counted for a volume, if it is still known, and tells who waits for memory. The
// caller holds Publisher.mu.
func (v *published) charge(size, reserved int64) {
	if v.p.volumes[v.request.VolumeID] != v {
		return
	}
	more := size + reserved - v.size - v.reserved
	v.size, v.reserved = size, reserved
	v.p.used += more
	if more < 0 {
		v.p.tellFreed()
	}
}
