package manager

import (
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/refvol/refvol/pkg/volume"
)

// watchStore keeps each object current by a watch of its own.
type watchStore struct {
	*base
	client kubernetes.Interface
}

func newWatchStore(client kubernetes.Interface) *watchStore {
	return &watchStore{base: newBase(client, "List or watch failed, trying again"), client: client}
}

// newObject returns an item whose reflector doesn't run yet.
func (s *watchStore) newObject(ref volume.Ref) object {
	k := s.newKnown(ref)
	if k == nil {
		return nil
	}
	ended := make(chan struct{})
	close(ended)
	it := &item{
		known:    k,
		running:  &s.running,
		logger:   s.logger,
		ended:    ended,
		ready:    make(chan struct{}),
		lastRead: time.Now(),
	}
	it.requests = &requests{item: it, backoff: retryBackoff()}
	it.reflector = newReflector(it, s.client)
	return it
}

// shutdown waits for the goroutines of reflectors.
func (s *watchStore) shutdown() { s.running.Wait() }
