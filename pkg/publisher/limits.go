package publisher

import (
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// overhead returns how many inodes a volume needs at most beyond its Footprint: its root, and the attributes of the root and of the
// generation. Newer kernels count attributes as inodes.
func overhead(record string) int64 {
	const bytesPerInode, rootAttributes = 1024, 1024
	return 1 + (rootAttributes+int64(len(record))+bytesPerInode-1)/bytesPerInode
}

// memoryOf returns the memory that a volume with these files holds, in bytes.
func memoryOf(tree *volume.Payload) int64 {
	size := writer.Measure(tree)
	return room.MemoryOf(size.Bytes, size.Inodes+overhead(tree.Record))
}
