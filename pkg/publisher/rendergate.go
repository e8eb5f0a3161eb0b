package publisher

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

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

// lane has a number of places. The pods that wait for one take turns, so that no pod's author holds up
// another pod by many volumes. A pod gets its places in the order in which it asked for them.
type lane struct {
	mu   sync.Mutex
	free int
	// turns are the pods that wait, the next one first, and waiting holds the channels of each, which are
	// closed when a place is given.
	turns   []types.UID
	waiting map[types.UID][]chan struct{}
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

// acquire waits for a place for a pod until ctx ends or stopping is closed.
func (l *lane) acquire(ctx context.Context, pod types.UID, stopping <-chan struct{}) error {
	if l.tryAcquire() {
		return nil // also of a ctx that has ended
	}
	given := l.enter(pod)
	var err error
	select {
	case <-given:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stopping:
		err = errStopping
	}
	if !l.leave(pod, given) { // it was given meanwhile
		l.release()
	}
	return err
}

// enter returns a channel that is closed when the pod has a place, which may be free since the try.
func (l *lane) enter(pod types.UID) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	given := make(chan struct{})
	if l.free > 0 {
		l.free--
		close(given)
		return given
	}
	if len(l.waiting[pod]) == 0 {
		l.turns = append(l.turns, pod)
	}
	if l.waiting == nil {
		l.waiting = map[types.UID][]chan struct{}{}
	}
	l.waiting[pod] = append(l.waiting[pod], given)
	return given
}

// leave ends a wait, and returns false if it has ended.
func (l *lane) leave(pod types.UID, given chan struct{}) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.waiting[pod], given)
	if at < 0 {
		return false
	}
	l.waiting[pod] = slices.Delete(l.waiting[pod], at, at+1)
	if len(l.waiting[pod]) == 0 {
		delete(l.waiting, pod)
		l.turns = slices.DeleteFunc(l.turns, func(other types.UID) bool { return other == pod })
	}
	return true
}

// release gives a place back.
func (l *lane) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.turns) == 0 {
		l.free++
		return
	}
	pod := l.turns[0]
	l.turns = l.turns[1:]
	close(l.waiting[pod][0])
	if l.waiting[pod] = l.waiting[pod][1:]; len(l.waiting[pod]) > 0 {
		l.turns = append(l.turns, pod)
	} else {
		delete(l.waiting, pod)
	}
}
