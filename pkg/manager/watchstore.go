package manager

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

var errShutdown = errors.New("the manager has shut down")

// watchStore holds the referenced objects, each kept current by a watch of its own.
//
// mu guards what is below it and the items' refs. It is taken before an item's own
// lock. Readers share it for the time of a map access.
type watchStore struct {
	client   kubernetes.Interface
	sources  map[volume.Kind]*source
	failures *failureLog
	// logger is for client-go.
	logger klog.Logger
	// running counts the goroutines of reflectors.
	running sync.WaitGroup

	mu      sync.RWMutex
	items   map[volume.Ref]*item
	changed func(volume.Ref)
	closed  bool
}

func newWatchStore(client kubernetes.Interface) *watchStore {
	logger := klog.Background()
	return &watchStore{
		client:   client,
		sources:  newSources(client),
		failures: &failureLog{logger: logger},
		logger:   forClientGo(logger),
		items:    map[volume.Ref]*item{},
		changed:  func(volume.Ref) {},
	}
}

func (s *watchStore) subscribe(fn func(volume.Ref)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = fn
}

// find returns the item of ref, or nil if nothing references it.
func (s *watchStore) find(ref volume.Ref) *item {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.items[ref]
}

// add counts one reference of uid to each of refs. A uid that is new to an item
// has the item's object verified.
func (s *watchStore) add(uid types.UID, refs []volume.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		it := s.items[ref]
		switch {
		case it == nil:
			if it = s.startItem(ref); it == nil {
				continue
			}
			s.items[ref] = it
		case it.refs[uid] == 0:
			it.verify()
		}
		it.refs[uid]++
	}
}

// drop takes away one reference of uid to each of refs, and every item that has no
// reference left. A reference that doesn't exist is ignored, so no count can
// become negative.
func (s *watchStore) drop(uid types.UID, refs []volume.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		it := s.items[ref]
		if it == nil || it.refs[uid] == 0 {
			continue
		}
		it.refs[uid]--
		if it.refs[uid] == 0 {
			delete(it.refs, uid)
		}
		if len(it.refs) == 0 {
			delete(s.items, ref)
			it.close(notRegistered(ref))
		}
	}
}

// startItem returns an item whose reflector has been started, or nil for a kind
// that cannot be watched. mu is held.
func (s *watchStore) startItem(ref volume.Ref) *item {
	src := s.sources[ref.Kind]
	if src == nil {
		return nil
	}
	it := s.newItem(ref, src)
	if s.closed {
		it.close(shutdownError(ref))
	} else {
		it.start()
	}
	return it
}

// stopIdle stops the reflectors of objects that nothing has read since t.
func (s *watchStore) stopIdle(t time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, it := range s.items {
		it.stopIfUnreadSince(t)
	}
}

// shutdown stops every reflector for good and waits for their goroutines. No item
// can start one afterwards, because each was closed first.
func (s *watchStore) shutdown() {
	s.mu.Lock()
	s.closed = true
	for ref, it := range s.items {
		it.close(shutdownError(ref))
	}
	s.mu.Unlock()
	s.running.Wait()
}

func shutdownError(ref volume.Ref) error {
	return fmt.Errorf("%s: %w: %w", ref, ErrNotSynced, errShutdown)
}
