package publisher

import (
	"context"
	"fmt"
	"os"
	"time"

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

// checkRoom says whether a volume may hold a tree, and the node: what the other volumes hold, and the tree, have to fit
// its total. What takes no more than the volume holds anyway passes, also after a limit was lowered. Where there is no
// room, what is kept for readers goes, for the sake of others. The caller holds the lock of the pod.
func (v *published) checkRoom(ctx context.Context, tree *volume.Tree, live bool) error {
	size := writer.Measure(tree)
	takes := memoryOf(size.Bytes, size.Inodes+overhead(tree.Record))
	held, others, fits := v.fits(takes)
	if memoryOf(size.Bytes, size.Inodes) <= held {
		return nil
	}
	if size.Bytes > v.p.limits.bytes {
		return fail(ReasonTooLarge, "the files take %d bytes of memory, more than the %d bytes that a volume may have (--max-volume-size)", size.Bytes, v.p.limits.bytes)
	}
	if size.Inodes > v.p.limits.inodes {
		return fail(ReasonTooLarge, "the files take %d inodes, more than the %d that a volume may have (they follow --max-volume-size)", size.Inodes, v.p.limits.inodes)
	}
	if err := v.p.limits.checkFiles(len(tree.Files)); err != nil {
		return err
	}
	if fits {
		return nil
	}
	if live {
		if err := v.reopen(ctx, func(mnt Mount) error { v.pruneNow(mnt); return v.measure(mnt) }); err != nil {
			return err
		}
	}
	return fail(ReasonNodeFull, "the files and their inodes take %d bytes of memory, the node's other volumes %d, together more than %d (--max-total-size)", takes, others, v.p.opts.MaxTotalSize)
}

// checkFiles refuses a volume of too many files, or items. Each volume keeps its list.
func (l limits) checkFiles(n int) error {
	if int64(n) > l.files {
		return fail(ReasonTooLarge, "the volume has %d files or items, more than %d: one for each page of %d bytes of --max-volume-size", n, l.files, pageSize)
	}
	return nil
}

// maxPodVolumes bounds the volumes of a pod, each of which keeps a list of what it shows.
const maxPodVolumes = 128

// checkPod refuses a new volume of a pod that has many.
func (p *Publisher) checkPod(worker *podWorker) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if worker.users > maxPodVolumes {
		return fail(ReasonTooLarge, "the pod has %d volumes of this driver, more than %d: show several objects in one volume", worker.users, maxPodVolumes)
	}
	return nil
}

// fits says what the volume holds, and the other volumes, and whether the node has room for a tree beside those.
func (v *published) fits(takes int64) (held, others int64, fits bool) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	others = v.p.used - v.size
	return v.size, others, others+takes <= v.p.opts.MaxTotalSize
}

// settle counts what a volume holds after a write. A volume that nobody sees yet is not made if the node holds too much
// with it, as others may have grown meanwhile; of another one, what is kept for readers goes. The caller holds the lock
// of the pod.
func (v *published) settle(mnt Mount, mounted bool) error {
	if err := v.measure(mnt); err != nil {
		return err
	}
	if !v.p.isOver() {
		return nil
	}
	if !mounted {
		return fail(ReasonNodeFull, "the node's volumes take more than %d bytes together (--max-total-size)", v.p.opts.MaxTotalSize)
	}
	v.pruneNow(mnt)
	if v.contents.leftover == nil { // a reader may have a file of what has gone open, which then still counts
		v.contents.pruneAt = time.Now().Add(pruneTime)
	}
	return v.measure(mnt)
}

func (p *Publisher) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used > p.opts.MaxTotalSize
}

// measure counts what a volume's file system holds, also for those who have old files open: the kernel says so. The
// caller holds the lock of the pod.
func (v *published) measure(mnt Mount) error {
	usage, err := mnt.Usage()
	if err != nil {
		return fmt.Errorf("measure volume %s: %w", v.request.VolumeID, err)
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.charge(memoryOf(usage.Used, usage.InodesUsed))
	return nil
}

// charge sets what is counted for a volume, if it is still known. The caller holds Publisher.mu.
func (v *published) charge(size int64) {
	if v.p.volumes[v.request.VolumeID] == v {
		v.p.used += size - v.size
		v.size = size
	}
}
