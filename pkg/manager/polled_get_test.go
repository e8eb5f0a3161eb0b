package manager

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

func TestGetObjectAsks(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v1 := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantGet(ref, v1, "1")
		v2 := e.api.put(secret("a", "2"))
		if e.strategy == Cache {
			e.wantGet(ref, v1, "1")
			after(maxAge)
		}
		e.wantGet(ref, v2, "2")

		e.api.set(func() { e.api.refuse = func(apiRequest) error { return syscall.ECONNREFUSED } })
		after(maxAge)
		if e.strategy == Cache {
			e.wantGet(ref, v2, "2")
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5500*time.Millisecond)
		defer cancel()
		before := len(e.api.requests(ref))
		if _, err := e.GetObject(ctx, ref); !errors.Is(err, ErrNotSynced) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("GetObject: %v", err)
		}
		if n := len(e.api.requests(ref)) - before; n < 2 || n > 6 {
			t.Errorf("asked %d times in 5.5 s, want two at least, and one a second at most", n)
		}

		e.api.set(func() { e.api.refuse = nil })
		e.wantGet(ref, v2, "2")
		gate := e.holdAll()
		defer close(gate)
		soon, cancelSoon := context.WithTimeout(t.Context(), time.Second/2)
		defer cancelSoon()
		if _, err := e.GetObject(soon, ref); !errors.Is(err, ErrNotSynced) || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("GetObject: %v, want nothing of an outage that is over", err)
		}
	})
}

func TestUnregisterEndsAReadThatWaitsForItsNextTry(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.set(func() { e.api.refuse = func(apiRequest) error { return syscall.ECONNREFUSED } })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		got := make(chan error, 1)
		go func() {
			_, err := e.GetObject(t.Context(), ref)
			got <- err
		}()
		after(retryInterval / 2)
		start := time.Now()
		e.UnregisterPod(pod("p"), "v")
		if err := <-got; !errors.Is(err, ErrNotRegistered) || time.Since(start) != 0 {
			t.Errorf("the waiting read returned %v after %v, want ErrNotRegistered at once", err, time.Since(start))
		}
	})
}
