package manager

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// podShare is the part of the bound that one pod's objects may take.
	podShare = 8
	// keyMemory is what a key takes besides its bytes and those of its value: a place in a map, which is not full, and two
	// allocations. objectMemory is what an object takes besides its keys. Without them a Secret of 1 MB could take 25 MB that
	// nobody counts.
	keyMemory    = 96
	objectMemory = 512
)

// FullError reports that an object is not kept for a new volume: what is kept would be over Options.MaxCachedSize.
type FullError struct {
	// Ref is the object.
	Ref volume.Ref
	// Size is what it takes in memory, in bytes, and Others is what the other kept objects take. Max is the most
	// that all may take. If Pod is true, these are of the objects of one pod.
	Size, Others, Max int64
	Pod               bool
}

// Error returns a text without values.
func (e *FullError) Error() string {
	if e.Pod {
		return fmt.Sprintf("%s takes %d bytes of memory, the pod's other objects %d, together more than %d (an eighth of --max-cached-size)", e.Ref, e.Size, e.Others, e.Max)
	}
	return fmt.Sprintf("%s takes %d bytes of memory, the node's other objects %d, together more than %d (--max-cached-size)", e.Ref, e.Size, e.Others, e.Max)
}

// cache counts what objects take, for whom, and bounds it at the first state of each: what is cached stays current,
// whatever it takes. mu guards all of it, with the places, and is taken after all other locks.
type cache struct {
	// max bounds size; 0: nothing does. Constant.
	max int64

	mu sync.Mutex
	// size is what all objects take, in bytes, and pods what those of each pod do.
	size int64
	pods map[types.UID]int64
}

// place is what one item has of the cache, and who needs it. cache.mu guards it.
type place struct {
	// size is what its object takes, 0 for none.
	size int64
	// refusal is why its last state was not kept; nil if it was.
	refusal *FullError
	// pods counts the references by the UID of the pod. mounted is how many of all are of mounted volumes.
	pods    map[types.UID]need
	mounted int32
}

// need counts a pod's volumes that reference an object, and those of them that are mounted.
type need struct{ volumes, mounted int32 }

// bytes returns what all objects take.
func (c *cache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// add counts a volume of a pod that references an object, and returns whether it is the pod's first.
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

// remove counts a volume no more, and returns whether it was the pod's last, and whether anybody references the object.
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

// mount says that a volume is mounted that was added before.
func (c *cache) mount(p *place, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.mount(uid, 1)
}

// mount adds to the mounted volumes of a pod. The caller holds cache.mu.
func (p *place) mount(uid types.UID, by int32) {
	n := p.pods[uid]
	n.mounted += by
	p.pods[uid] = n
	p.mounted += by
}

// keep counts an object in place of what the item had; nil is none. Only one of which nothing was kept, and that no
// mounted volume needs, is refused, with a FullError.
func (c *cache) keep(p *place, obj *volume.Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := memoryOf(obj)
	p.refusal = nil
	if p.size == 0 && p.mounted == 0 && size > 0 {
		if p.refusal = c.refuse(p, obj.Ref, size); p.refusal != nil {
			return p.refusal
		}
	}
	c.resize(p, size)
	return nil
}

// release counts nothing for an item any more.
func (c *cache) release(p *place) { _ = c.keep(p, nil) }

func (c *cache) resize(p *place, size int64) {
	by := size - p.size
	p.size = size
	c.size += by
	for uid := range p.pods {
		c.count(uid, by)
	}
}

// refused returns why an object is not kept for a pod that has no mounted volume of it, or nil.
func (c *cache) refused(p *place, uid types.UID, ref volume.Ref) error {
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
	// Where another pod's share was too small, the next try may be for this one.
	if p.refusal != nil && !p.refusal.Pod {
		return p.refusal
	}
	return nil
}

// refuse returns why an object must not be kept, or nil: the share of each of its pods is too small, or that of all. The
// caller holds mu.
func (c *cache) refuse(p *place, ref volume.Ref, size int64) (err *FullError) {
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

// overShare returns an error if an object is too much for a pod whose other objects take so many bytes.
func (c *cache) overShare(ref volume.Ref, size, others int64) *FullError {
	if share := c.max / podShare; c.max > 0 && size > 0 && size+others > share {
		return &FullError{Ref: ref, Size: size, Others: others, Max: share, Pod: true}
	}
	return nil
}

// count adds to what the objects of a pod take. The caller holds mu.
func (c *cache) count(uid types.UID, by int64) {
	if c.pods[uid] += by; c.pods[uid] == 0 {
		delete(c.pods, uid)
	}
}

// memoryOf returns what an object takes in memory, in bytes; 0 for nil.
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
