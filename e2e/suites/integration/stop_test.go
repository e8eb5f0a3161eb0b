package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// drainTime is what the plugin gives the calls under way at a stop.
const drainTime = 20 * time.Second

// TestStopDuringABurst sends SIGTERM at a random moment of 40 publishes and 20 unpublishes. No answer is final, nothing is half made, and each
// call that failed succeeds when it is repeated.
func TestStopDuringABurst(t *testing.T) {
	t.Parallel()
	n, dice := newNode(t, "-v=2"), harness.Rand(t)
	for range harness.Scaled(1, 30) {
		data := map[string]string{"a": n.canary(), "b": n.canary()}
		n.configMap("app", data)
		var calls []*stopped
		for i := range 60 {
			c := &stopped{comes: i >= 20, volume: n.short("app"), call: n.Publish}
			if !c.comes {
				c.call = n.Unpublish
				n.mustPublish(c.volume)
			} else if err := n.StorePod(t.Context(), c.volume); err != nil { // so that the calls come all at once
				t.Fatal(err)
			}
			calls = append(calls, c)
		}
		n.stopAmid(calls, dice.IntN(len(calls)))
		n.wantNothingHalfMade(calls, data)
		n.mustStart()
		var stay []*harness.Volume
		for _, c := range calls {
			if c.comes {
				stay = append(stay, c.volume)
			}
			if c.answer == nil {
				continue
			}
			if err := c.call(t.Context(), c.volume); err != nil {
				t.Errorf("the repeated call of a volume that comes: %t: %v", c.comes, err)
			}
		}
		n.wantMounts(len(stay))
		value := n.value("app")
		for _, v := range stay {
			n.arrives(v, "key", value, soon)
		}
		n.unpublishAll(stay)
	}
}

// stopped is a call under way at a stop, for a volume that comes or goes, and its answer.
type stopped struct {
	comes  bool
	volume *harness.Volume
	call   func(context.Context, *harness.Volume) error
	answer error
}

// stopAmid makes all calls at once, and has the plugin end once so many of them have been answered.
func (n *node) stopAmid(calls []*stopped, at int) {
	n.t.Helper()
	var running sync.WaitGroup
	var answers atomic.Int64
	for _, c := range calls {
		running.Go(func() {
			c.answer = c.call(n.t.Context(), c.volume)
			answers.Add(1)
		})
	}
	harness.Eventually(n.t, soon, func() error {
		if got := answers.Load(); got < int64(at) {
			return fmt.Errorf("%d calls were answered, want %d", got, at)
		}
		return nil
	})
	begin := time.Now()
	if err := n.Process().Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	select {
	case <-n.Process().Done():
	case <-time.After(drainTime + soon):
		n.t.Errorf("the plugin has not ended after %s: %v", time.Since(begin), n.Process().Kill())
	}
	n.t.Logf("SIGTERM after %d answers, the end %s later", at, time.Since(begin).Round(time.Millisecond))
	running.Wait()                                     // their connection stays until the last has its answer
	if err := n.Terminate(n.t.Context()); err != nil { // fails unless the status was 0
		n.t.Fatal(err)
	}
}

// wantNothingHalfMade compares what the plugin left with its answers: each mount is complete, there is nothing else, and
// after each failure the kubelet goes on to take the volume for one that may be there.
func (n *node) wantNothingHalfMade(calls []*stopped, data map[string]string) {
	n.t.Helper()
	mounted := n.mountIDs()
	n.wantMounts(len(mounted)) // none is mounted twice
	for _, c := range calls {
		target := n.Target(c.volume)
		_, isMounted := mounted[target]
		delete(mounted, target)
		final := !slices.Contains([]codes.Code{codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted}, status.Code(c.answer))
		if final || c.answer == nil && isMounted != c.comes {
			n.t.Errorf("a volume that comes: %t: mounted at %s: %t, the answer was %v", c.comes, target, isMounted, c.answer)
		}
		if isMounted {
			if err := n.showsJust(c.volume, data); err != nil {
				n.t.Errorf("a volume that comes: %t: %v", c.comes, err)
			}
		} else if _, err := os.Lstat(target); !os.IsNotExist(err) {
			n.t.Errorf("left of a target that is not mounted: %s (%v)", target, err)
		}
	}
	if len(mounted) > 0 {
		n.t.Errorf("left of volumes that were unpublished: %v", mounted)
	}
}
