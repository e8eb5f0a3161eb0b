package manager

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/backoff"
)

// watchStore keeps each object current by a watch of its own.
type watchStore struct{ *base }

func newWatchStore(opts Options, c *cache) *watchStore {
	return &watchStore{newBase(opts, c, "List or watch failed, trying again")}
}

// newObject returns an item whose reflector doesn't run yet.
func (s *watchStore) newObject(k key, pod types.UID) object {
	known := s.newKnown(k, pod)
	if known == nil {
		return nil
	}
	ended := make(chan struct{})
	close(ended)
	it := &item{
		known:     known,
		base:      s.base,
		skipPause: make(chan struct{}, 1),
		ended:     ended,
		lastRead:  time.Now(),
	}
	it.reflector = reflector{item: it, backoff: retryBackoff(backoff.Short)}
	return it
}

// shutdown waits for the goroutines of reflectors.
func (s *watchStore) shutdown() { s.running.Wait() }
