package manager

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// pollStore asks for objects instead of watching them. It sends requests only when asked.
type pollStore struct {
	*base
	// ttl says how long an answer is good for; nil: not at all.
	ttl *nodeTTL
}

// newGetStore returns a store that asks for the present state each time.
func newGetStore(opts Options, c *cache) *pollStore {
	return &pollStore{base: newBase(opts, c, "Get failed")}
}

// newCacheStore returns a store that keeps an answer for as long as the Node says.
func newCacheStore(opts Options, c *cache) *pollStore {
	s := newGetStore(opts, c)
	s.ttl = newNodeTTL(s.base, opts.Nodes, opts.NodeName)
	return s
}

// newObject returns an object of which nothing is known; the first read of it asks.
func (s *pollStore) newObject(k key, pod types.UID) object {
	known := s.newKnown(k, pod)
	if known == nil {
		return nil
	}
	return &polled{known: known, store: s, closing: make(chan struct{}), skipPause: make(chan struct{}, 1), valid: 1}
}

// uncached tells whether each Refresh needs a new answer.
func (s *pollStore) uncached() bool { return s.ttl == nil }

// fresh tells whether the answer to a request sent at that time is still good.
func (s *pollStore) fresh(asked time.Time) bool {
	return !s.uncached() && time.Since(asked) < s.ttl.get()
}

// shutdown waits for all requests. Closing the objects has ended theirs.
func (s *pollStore) shutdown() {
	if s.ttl != nil {
		s.ttl.close()
	}
	s.running.Wait()
}
