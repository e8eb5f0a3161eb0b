package manager

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// StreamBuffer is how many bytes the transport may buffer of each stream that nobody reads. It is the MaxReceiveBufferPerStream of the base
// transport.
const StreamBuffer = 32 << 10

const (
	// maxInFlight limits the bytes of large events that are received and decoded at the same time. The cache counts an object only when it
	// is decoded, and that takes up to three times the bytes of its event.
	maxInFlight = 4 << 20
	// smallEvent is the length in bytes up to which an event waits for nothing.
	smallEvent = StreamBuffer
	// inFlightTimeout is how long an event counts. A connection that stalls in the middle of an event must not hold up other objects.
	inFlightTimeout = time.Second
)

// inFlight limits the memory of events that the cache does not count yet. It is safe for concurrent use.
type inFlight struct{ bytes *semaphore.Weighted }

func newInFlight() *inFlight { return &inFlight{semaphore.NewWeighted(maxInFlight)} }

// take waits until an event of a length in bytes may be received. The error is that of ctx. release is idempotent.
func (f *inFlight) take(ctx context.Context, length int64) (release func(), err error) {
	length = min(length, maxInFlight)
	if err := f.bytes.Acquire(ctx, length); err != nil {
		return nil, err
	}
	free := sync.OnceFunc(func() { f.bytes.Release(length) })
	timer := time.AfterFunc(inFlightTimeout, free)
	return func() {
		timer.Stop()
		free()
	}, nil
}
