package publisher

import (
	"context"
	"os"

	"golang.org/x/sync/semaphore"

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

// check refuses a tree that no volume may have.
func (l limits) check(size writer.Footprint, files int) error {
	if size.Bytes > l.bytes {
		return fail(ReasonTooLarge, "the files take %d bytes of memory, more than the %d bytes that a volume may have (--max-volume-size)", size.Bytes, l.bytes)
	}
	if size.Inodes > l.inodes {
		return fail(ReasonTooLarge, "the files take %d inodes, more than the %d that a volume may have (they follow --max-volume-size)", size.Inodes, l.inodes)
	}
	return l.checkFiles(files)
}

// checkFiles refuses a volume of too many files, or items. Each volume keeps its list.
func (l limits) checkFiles(n int) error {
	if int64(n) > l.files {
		return fail(ReasonInvalid, "the volume has %d files or items, more than %d: one for each page of %d bytes of --max-volume-size", n, l.files, pageSize)
	}
	return nil
}

// renderPlaces bounds the memory of what is parsed, resolved and rendered. A place is held over no system call: what may
// hang holds none that others wait for. Nearly all volumes are small, and never wait for a large one. It is safe for
// concurrent use.
type renderPlaces struct{ small, large *semaphore.Weighted }

const (
	// atOnce is how many small and how many large renders there are at once.
	atOnce = 4
	// smallHeap is the most memory, in bytes, that a small one takes.
	smallHeap = 1 << 20
)

func newRenderPlaces() renderPlaces {
	return renderPlaces{small: semaphore.NewWeighted(atOnce), large: semaphore.NewWeighted(atOnce)}
}

// of returns the places for what takes so many bytes.
func (r renderPlaces) of(heap int) *semaphore.Weighted {
	if heap <= smallHeap {
		return r.small
	}
	return r.large
}

// areTaken says whether do would wait.
func (r renderPlaces) areTaken(heap int) bool {
	if from := r.of(heap); from.TryAcquire(1) {
		from.Release(1)
		return false
	}
	return true
}

// do calls render, which takes about so many bytes of memory, in its turn.
func (r renderPlaces) do(ctx context.Context, heap int, render func()) error {
	from := r.of(heap)
	if !from.TryAcquire(1) { // also of a ctx that has ended
		if err := from.Acquire(ctx, 1); err != nil {
			return errCrowded
		}
	}
	defer from.Release(1)
	render()
	return nil
}

const (
	// parseCost is more memory, in bytes, than it takes to parse a byte of attributes, and resolveCost than it takes to
	// resolve what a byte of a pod's spec says: an item has eight at least.
	parseCost, resolveCost = 512, 50
)

// attributesSize returns the bytes of a volume's attributes.
func attributesSize(attributes map[string]string) (size int) {
	for name, value := range attributes {
		size += len(name) + len(value)
	}
	return size
}
