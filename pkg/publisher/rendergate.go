package publisher

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"github.com/refvol/refvol/pkg/payload"
)

// The memory that renders of all volumes hold together is at most four times that of the
// largest one: that of three large ones, and as much for small ones. Nearly all volumes
// are small ones, and never wait for a large one.
const (
	largeRenders = 3
	// smallHeap is the most memory, in bytes, that a small render takes.
	smallHeap    = 1 << 20
	smallRenders = payload.MaxHeap / smallHeap
)

var (
	// errCrowded is why a volume waits for its render.
	errCrowded = errors.New("the volumes that are rendered just now take all the memory there is for that")
	// errStopping is why a wait ends early.
	errStopping = errors.New("the plugin is stopping")
)

// renderGate lets a bounded number of renders go on at once. Its zero value is not ready for
// use. It has no goroutine and is safe for concurrent use.
type renderGate struct{ small, large lane }

func newRenderGate() *renderGate {
	return &renderGate{small: lane{free: smallRenders}, large: lane{free: largeRenders}}
}

// lane returns where a render of so many bytes has its place.
func (g *renderGate) lane(heap int64) *lane {
	if heap <= smallHeap {
		return &g.small
	}
	return &g.large
}

// lane has a number of places, which are given in the order in which they were asked for.
type lane struct {
	mu      sync.Mutex
	free    int
	waiting list.List // of chan struct{}, closed when a place is given
}

// tryAcquire takes a place if one is free. While somebody waits none is.
func (l *lane) tryAcquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free == 0 {
		return false
	}
	l.free--
	return true
}

// acquire waits for a place until ctx ends or stopping is closed.
func (l *lane) acquire(ctx context.Context, stopping <-chan struct{}) error {
	if l.tryAcquire() {
		return nil
	}
	given := make(chan struct{})
	waits := l.wait(given)
	var err error
	select {
	case <-given:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stopping:
		err = errStopping
	}
	l.mu.Lock()
	l.waiting.Remove(waits)
	l.mu.Unlock()
	select {
	case <-given: // meanwhile
		l.release()
	default:
	}
	return err
}

// wait has a channel closed when it is its turn.
func (l *lane) wait(given chan struct{}) *list.Element {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free > 0 { // since the try
		l.free--
		close(given)
		return &list.Element{}
	}
	return l.waiting.PushBack(given)
}

// release gives a place back.
func (l *lane) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.waiting.Front()
	if first == nil {
		l.free++
		return
	}
	if given, ok := l.waiting.Remove(first).(chan struct{}); ok {
		close(given)
	}
}
