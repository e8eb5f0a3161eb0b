package manager

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// podShare is the divisor for the share of MaxCachedSize that one pod's objects may use.
	podShare = 8
	// keyMemory is the memory of a key beyond its bytes and those of its value: a place in a map that is not full, and two allocations.
	// objectMemory is the memory of an object beyond its keys. Without them, a Secret of 1 MB could use 25 MB that nobody counts.
	keyMemory    = 96
	objectMemory = 512
)

// FullError says that an object is not cached for a new volume, because the cache would exceed Options.MaxCachedSize.
type FullError struct {
	// Ref is the object.
	Ref volume.Ref
	// Size is the memory of the object, Others that of the other cached objects, and Max the limit for all, in bytes. If Pod is true,
	// Others and Max are those of one pod.
	Size, Others, Max int64
	Pod               bool
}

// Error returns a text that holds no object's value.
func (e *FullError) Error() string {
	if e.Pod {
		return fmt.Sprintf("%s takes %d bytes of memory, the pod's other objects %d, together more than %d (an eighth of --max-cached-size)", e.Ref, e.Size, e.Others, e.Max)
	}
	return fmt.Sprintf("%s takes %d bytes of memory, the node's other objects %d, together more than %d (--max-cached-size)", e.Ref, e.Size, e.Others, e.Max)
}

// cache counts the memory of objects and of each pod's objects. It checks the limit only for the first state of an object: an object that
// is cached already stays current, whatever its size. mu guards everything, including the places, and is taken after all other locks.
type cache struct {
	// max limits size; 0 means no limit. It is constant.
	max int64

	mu sync.Mutex
	// size is the memory of all objects in bytes. pods has the memory of each pod's objects.
	size int64
	pods map[types.UID]int64
}

// place is an item's part of the cache, and who needs it. cache.mu guards it.
type place struct {
	// size is the memory of its object, or 0.
	size int64
	// refusal says why its last state was not cached, or is nil.
	refusal *FullError
	// pods counts the references by the pod's UID. mounted is the number of references of mounted volumes.
	pods    map[types.UID]need
	mounted int32
}

// need counts a pod's volumes that reference an object, and how many of them are mounted.
type need struct{ volumes, mounted int32 }

// bytes returns the memory of all objects.
func (c *cache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// add counts a pod's volume that references an object, and reports whether it is the pod's first.
func (c *cache) add(p *place, uid types.UID, mounted bool) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := p.pods[uid]
	if first = n.volumes == 0; first {
		c.count(uid, p.size)
	}
	n.volumes++
	p.pods[uid] = n
	if mounted {
		p.mount(uid, 1)
	}
	return first
}

// remove undoes add. It reports whether the volume was the pod's last, and whether any pod still references the object.
func (c *cache) remove(p *place, uid types.UID, mounted bool) (last, used bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mounted {
		p.mount(uid, -1)
	}
	n := p.pods[uid]
	if n.volumes--; n.volumes > 0 {
		p.pods[uid] = n
		return false, true
	}
	delete(p.pods, uid)
	c.count(uid, -p.size)
	return true, len(p.pods) > 0
}

// anyPod returns the UID of a pod that references an object, or "" if no pod does any more.
func (c *cache) anyPod(p *place) types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range p.pods {
		return uid
	}
	return ""
}

// isMounted reports whether a mounted volume references an object.
func (c *cache) isMounted(p *place) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.mounted > 0
}

// mount marks a volume that was added before as mounted.
func (c *cache) mount(p *place, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.mount(uid, 1)
}

// mount changes the number of a pod's mounted volumes. The caller holds cache.mu.
func (p *place) mount(uid types.UID, by int32) {
	n := p.pods[uid]
	n.mounted += by
	p.pods[uid] = n
	p.mounted += by
}

// replace replaces what an item has in the cache. obj may be nil. A FullError is possible only if the item has nothing cached and no
// mounted volume needs it.
func (c *cache) replace(p *place, obj *volume.Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := memoryOf(obj)
	p.refusal = nil
	if p.size == 0 && p.mounted == 0 && size > 0 {
		if p.refusal = c.checkRoom(p, obj.Ref, size); p.refusal != nil {
			return p.refusal
		}
	}
	c.resize(p, size)
	return nil
}

// release removes an item's object from the count.
func (c *cache) release(p *place) { _ = c.replace(p, nil) }

func (c *cache) resize(p *place, size int64) {
	by := size - p.size
	p.size = size
	c.size += by
	for uid := range p.pods {
		c.count(uid, by)
	}
}

// refusalFor returns why an object is not cached for a pod that has not mounted it, or nil.
func (c *cache) refusalFor(p *place, uid types.UID, ref volume.Ref) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.pods[uid].mounted > 0 {
		return nil
	}
	size, others := p.size, c.pods[uid]-p.size
	if p.refusal != nil {
		size = p.refusal.Size
	}
	if err := c.overShare(ref, size, others); err != nil {
		return err
	}
	// If another pod's share was too small, the next try may succeed for this pod.
	if p.refusal != nil && !p.refusal.Pod {
		return p.refusal
	}
	return nil
}

// checkRoom returns why an object must not be cached, or nil: the shares of all its pods are too small, or the total is. The caller holds
// mu.
func (c *cache) checkRoom(p *place, ref volume.Ref, size int64) (err *FullError) {
	for uid := range p.pods {
		if err = c.overShare(ref, size, c.pods[uid]); err == nil {
			break
		}
	}
	if err == nil && c.max > 0 && c.size+size > c.max {
		err = &FullError{Ref: ref, Size: size, Others: c.size, Max: c.max}
	}
	return err
}

// overShare returns an error if an object does not fit into a pod's share. others is the memory of the pod's other objects.
func (c *cache) overShare(ref volume.Ref, size, others int64) *FullError {
	if share := c.max / podShare; c.max > 0 && size > 0 && size+others > share {
		return &FullError{Ref: ref, Size: size, Others: others, Max: share, Pod: true}
	}
	return nil
}

// count changes the memory of a pod's objects. The caller holds mu.
func (c *cache) count(uid types.UID, by int64) {
	if c.pods[uid] += by; c.pods[uid] == 0 {
		delete(c.pods, uid)
	}
}

// memoryOf returns the memory of an object in bytes, or 0 for nil.
func memoryOf(obj *volume.Object) int64 {
	if obj == nil {
		return 0
	}
	size := int64(objectMemory)
	for _, data := range []map[string][]byte{obj.Data, obj.BinaryData} {
		for key, value := range data {
			size += int64(len(key)+len(value)) + keyMemory
		}
	}
	return size
}
