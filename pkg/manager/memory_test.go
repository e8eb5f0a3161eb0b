package manager

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLargeEventsTakeTurns: the memory of events that the cache does not count yet is bounded before they are received, however many
// objects of 1 MB a pod names. Small events wait for nothing.
func TestLargeEventsTakeTurns(t *testing.T) {
	const watches, large = 200, smallEvent + 1
	for length, atOnce := range map[uint32]int64{1 << 20: maxInFlight >> 20, smallEvent: watches, large: maxInFlight / large} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			shared := newInFlight()
			var received atomic.Int64
			for range watches {
				body := readerFunc(func([]byte) (int, error) {
					received.Add(1)
					<-ctx.Done()
					return 0, ctx.Err()
				})
				from := &stream{body: io.MultiReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, length)), body), inFlight: shared}
				go func() { _, _ = from.next(ctx) }()
			}
			synctest.Wait()
			if n := received.Load(); n != atOnce {
				t.Errorf("%d events of %d bytes are received at once, want %d", n, length, atOnce)
			}
			cancel()
		})
	}
}

// A stalled connection ends the turn of its event after a second, so that other events don't wait for it.
func TestAStalledEventHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInFlight()
		first, err := f.take(t.Context(), maxInFlight+1) // counts as all there is
		must(t, err)
		began := time.Now()
		second, err := f.take(t.Context(), maxInFlight)
		if err != nil || time.Since(began) != inFlightTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		first() // it is too late, and must not free the room of the second
		if f.bytes.TryAcquire(1) {
			t.Error("there is room beside the second")
		}
		second()
		second()
		if !f.bytes.TryAcquire(maxInFlight) {
			t.Error("some room is not free again")
		}
	})
}
