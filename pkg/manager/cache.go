package manager

import (
	"bytes"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// podShare is the part of the bound that one pod's objects may take.
	podShare = 8
	// keyMemory is what a key takes besides its bytes and those of its value: a place in a map, which is not full, and
	// two allocations. objectMemory is what an object takes besides its keys. Without them a Secret of 1 MB could
	// take 25 MB that nobody counts.
	keyMemory    = 96
	objectMemory = 512
)

// FullError reports that an object is not kept for a new volume: what is kept would be over
// Options.MaxCachedSize.
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

// cache holds what is known of objects: one copy of equal ones, whichever accounts read them. It counts what
// the copies take, and bounds it.
//
// It owns the copies. Each object that pods reference has a holding, which holds one copy or none. A
// copy stays until the last holding lets it go. Nobody changes a copy, so whoever has got one may read it for longer.
//
// mu guards everything, the holdings too. It is taken after all other locks.
type cache struct {
	// max bounds size; 0: nothing does. Constant.
	max int64

	mu sync.Mutex
	// size is what all copies take, in bytes.
	size   int64
	copies map[identity]*stored
	// pods is what the objects of each pod take that has some.
	pods map[types.UID]int64
}

// identity is what tells one state of an object from another, as long as no etcd is restored.
type identity struct {
	kind volume.Kind
	volume.Version
}

// stored is one copy.
type stored struct {
	object *volume.Object
	size   int64
	// holders counts the holdings that hold it.
	holders int
	// next is another copy of the same identity, with other bytes.
	next *stored
}

// holding is what one object holds of the cache, and who needs it. cache.mu guards it.
type holding struct {
	cache *cache
	copy  *stored
	// refusal is why the last state was not kept; nil if it was.
	refusal *FullError
	// pods counts the references by the UID of the pod. mounted is how many of all are of mounted volumes.
	pods    map[types.UID]need
	mounted int
}

// need counts a pod's volumes that reference an object, and those of them that are mounted.
type need struct{ volumes, mounted int32 }

func newCache(maxSize int64) *cache {
	return &cache{max: maxSize, copies: map[identity]*stored{}, pods: map[types.UID]int64{}}
}

func (c *cache) newHolding() *holding { return &holding{cache: c, pods: map[types.UID]need{}} }

// bytes returns what all copies take.
func (c *cache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// refer counts one more volume of a pod, which may be mounted. It returns whether it is the pod's first.
func (h *holding) refer(uid types.UID, mounted bool) (first bool) {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	n := h.pods[uid]
	first = n.volumes == 0
	n.volumes++
	h.pods[uid] = n
	if first {
		h.cache.count(uid, h.copy.memory())
	}
	if mounted {
		h.mountLocked(uid, 1)
	}
	return first
}

// unrefer is the reverse of refer. It ignores a pod without a reference, so no count becomes negative. It returns whether
// the last reference has gone.
func (h *holding) unrefer(uid types.UID, mounted bool) (last bool) {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	if h.pods[uid].volumes == 0 {
		return false
	}
	if mounted {
		h.mountLocked(uid, -1)
	}
	n := h.pods[uid]
	if n.volumes--; n.volumes > 0 {
		h.pods[uid] = n
		return false
	}
	delete(h.pods, uid)
	h.cache.count(uid, -h.copy.memory())
	return len(h.pods) == 0
}

// mount counts that a volume of a pod, which has a reference, is mounted.
func (h *holding) mount(uid types.UID) {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	h.mountLocked(uid, 1)
}

func (h *holding) mountLocked(uid types.UID, by int32) {
	n := h.pods[uid]
	n.mounted += by
	h.pods[uid] = n
	h.mounted += int(by)
}

// keep has h hold obj in place of what it held. It returns the copy to use, which is obj or an equal object. Only an
// object that h held nothing of, and that no mounted volume needs, is refused, with a FullError: what is cached
// stays current, whatever it takes.
func (h *holding) keep(obj *volume.Object) (*volume.Object, error) {
	c, size := h.cache, memoryOf(obj)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.find(obj)
	h.refusal = nil
	if h.copy == nil && h.mounted == 0 {
		if h.refusal = c.refuse(h, obj.Ref, size, s != nil); h.refusal != nil {
			return nil, h.refusal
		}
	}
	if s == nil {
		id := identityOf(obj)
		s = &stored{object: obj, size: size, next: c.copies[id]}
		c.copies[id] = s
		c.size += size
	}
	s.holders++
	h.replace(s)
	return s.object, nil
}

// release has h hold nothing.
func (h *holding) release() {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	h.refusal = nil
	h.replace(nil)
}

// refused returns why the object is not kept for a pod that has no mounted volume of it, or nil.
func (h *holding) refused(uid types.UID, ref volume.Ref) error {
	c := h.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.pods[uid].mounted > 0 {
		return nil
	}
	size, others := h.copy.memory(), c.pods[uid]-h.copy.memory()
	if h.refusal != nil {
		size = h.refusal.Size
	}
	if err := c.overShare(ref, size, others); err != nil {
		return err
	}
	// Where another pod's share was too small, the next try may be for this one.
	if h.refusal != nil && !h.refusal.Pod {
		return h.refusal
	}
	return nil
}

// refuse returns why h must not keep an object, or nil. isStored says that there is a copy. The caller holds mu.
func (c *cache) refuse(h *holding, ref volume.Ref, size int64, isStored bool) (err *FullError) {
	for uid := range h.pods {
		if err = c.overShare(ref, size, c.pods[uid]); err == nil {
			break
		}
	}
	if err == nil && c.max > 0 && !isStored && c.size+size > c.max {
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

// find returns the copy of an equal object, or nil. The caller holds mu.
func (c *cache) find(obj *volume.Object) *stored {
	for s := c.copies[identityOf(obj)]; s != nil; s = s.next {
		if equal(s.object, obj) {
			return s
		}
	}
	return nil
}

// replace has h hold s, which counts it already, or nil. The caller holds mu.
func (h *holding) replace(s *stored) {
	old := h.copy
	h.copy = s
	for uid := range h.pods {
		h.cache.count(uid, s.memory()-old.memory())
	}
	if old == nil {
		return
	}
	if old.holders--; old.holders == 0 {
		h.cache.remove(old)
	}
}

func (c *cache) remove(old *stored) {
	c.size -= old.size
	id := identityOf(old.object)
	if c.copies[id] == old {
		if c.copies[id] = old.next; old.next == nil {
			delete(c.copies, id)
		}
		return
	}
	for s := c.copies[id]; s != nil; s = s.next {
		if s.next == old {
			s.next = old.next
		}
	}
}

// count adds to what the objects of a pod take. The caller holds mu.
func (c *cache) count(uid types.UID, by int64) {
	if c.pods[uid] += by; c.pods[uid] == 0 {
		delete(c.pods, uid)
	}
}

// memory returns what a copy takes, 0 for nil.
func (s *stored) memory() int64 {
	if s == nil {
		return 0
	}
	return s.size
}

func identityOf(obj *volume.Object) identity { return identity{obj.Kind, obj.Version} }

func equal(a, b *volume.Object) bool {
	return a.Ref == b.Ref && a.Version == b.Version && a.Immutable == b.Immutable &&
		maps.EqualFunc(a.Data, b.Data, bytes.Equal) && maps.EqualFunc(a.BinaryData, b.BinaryData, bytes.Equal)
}

// memoryOf returns what an object takes in memory, in bytes.
func memoryOf(obj *volume.Object) int64 {
	size := int64(objectMemory)
	for _, data := range []map[string][]byte{obj.Data, obj.BinaryData} {
		for key, value := range data {
			size += int64(len(key)+len(value)) + keyMemory
		}
	}
	return size
}
