// Package room counts what volumes hold in memory and what they name: for each volume, each pod and the node.
//
// It owns the limits and these counts. A limit of one volume alone bounds nothing, because a pod may have 128 of them. The package must not
// know how memory is measured, when it is asked, or what follows if there is no room.
package room

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// Room has the counts of a node. It is safe for concurrent use. mu guards used, pods and the fields of pods and volumes that say so. No
// other lock is taken while it is held.
type Room struct {
	limits Limits
	// total limits used, and share limits what the volumes of one pod hold, in bytes.
	total, share int64

	mu sync.Mutex
	// used is the memory that all volumes hold, in bytes.
	used int64
	pods map[types.UID]*pod
}

// pod is what the volumes of one pod have together. Room.mu guards it.
type pod struct {
	volumes int
	size    int64
	names   volume.Names
}

// New returns a Room without volumes. maxVolumeSize limits the memory of one volume's files, maxTotalSize that of all volumes, in bytes.
func New(maxVolumeSize, maxTotalSize int64) *Room {
	return &Room{limits: limitsFor(maxVolumeSize), total: maxTotalSize, share: max(maxTotalSize/podShare, maxVolumeSize), pods: map[types.UID]*pod{}}
}

// Limits returns the limits of one volume.
func (r *Room) Limits() Limits { return r.limits }

// Volume is what one volume has. It is safe for concurrent use.
type Volume struct {
	room *Room
	uid  types.UID

	// Room.mu guards the fields below. pod is nil after Remove.
	pod *pod
	// size is the memory that the file system holds, tree is what the shown files need of it, in bytes. names is what the volume names.
	size, tree int64
	names      volume.Names
}

// Add adds a volume of a pod that has nothing yet.
func (r *Room) Add(uid types.UID) *Volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	if p == nil {
		p = &pod{}
		r.pods[uid] = p
	}
	p.volumes++
	return &Volume{room: r, uid: uid, pod: p}
}

// Total returns the memory that all volumes hold, in bytes.
func (r *Room) Total() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// Remove undoes Add. It is idempotent. Nothing is counted for the volume from then on.
func (v *Volume) Remove() {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	if v.pod == nil {
		return
	}
	v.hold(0)
	v.name(volume.Names{})
	if v.pod.volumes--; v.pod.volumes == 0 {
		delete(v.room.pods, v.uid)
	}
	v.pod = nil
}

// CheckMemory returns an error if the volume may not hold so many bytes, because of the pod's other volumes or the node's.
func (v *Volume) CheckMemory(takes int64) error {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	switch pod, node := v.pod.size-v.size, v.room.used-v.size; {
	case pod+takes > v.room.share:
		return fmt.Errorf("the files and their inodes take %d bytes of memory, the pod's other volumes %d, together more than %d (a pod's share: an eighth of --max-total-size, but at least --max-volume-size)", takes, pod, v.room.share)
	case node+takes > v.room.total:
		return fmt.Errorf("the files and their inodes take %d bytes of memory, the node's other volumes %d, together more than %d (--max-total-size)", takes, node, v.room.total)
	}
	return nil
}

// CheckNames returns an error if the volume may not name so much, because of the pod's other volumes. It may always name what it names
// already. The limit holds if one goroutine checks and sets the names of all volumes of a pod, as its worker does.
func (v *Volume) CheckNames(n volume.Names) error {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	if now := v.names; n.Objects <= now.Objects && n.Items <= now.Items && n.Bytes+n.Added <= now.Bytes+now.Added {
		return nil
	}
	others := v.pod.names.Minus(v.names)
	return v.room.limits.checkNames(n, others)
}

// Name sets what the volume names.
func (v *Volume) Name(n volume.Names) {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	v.name(n)
}

// name is Name for a caller that holds mu.
func (v *Volume) name(n volume.Names) {
	if v.pod != nil {
		v.pod.names = v.pod.names.Minus(v.names).Plus(n)
		v.names = n
	}
}

// Hold sets the memory that the volume's file system holds, in bytes.
func (v *Volume) Hold(size int64) {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	v.hold(size)
}

// hold is Hold for a caller that holds mu.
func (v *Volume) hold(size int64) {
	if v.pod != nil {
		v.room.used += size - v.size
		v.pod.size += size - v.size
		v.size = size
	}
}

// Need sets the memory that the shown files need, in bytes.
func (v *Volume) Need(tree int64) {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	v.tree = tree
}

// NeedAtMost lowers the memory that the shown files need.
func (v *Volume) NeedAtMost(tree int64) {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	v.tree = min(v.tree, tree)
}

// Held returns the memory that the volume's file system holds, in bytes.
func (v *Volume) Held() int64 {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	return v.size
}

// Needed returns the memory that the shown files need, in bytes.
func (v *Volume) Needed() int64 {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	return v.tree
}

// HoldsOld reports whether the volume holds much more than its files need, because readers have old files open. The margin allows for the
// files' attributes.
func (v *Volume) HoldsOld() bool {
	v.room.mu.Lock()
	defer v.room.mu.Unlock()
	return v.size > v.tree+v.tree/4+64<<10
}
