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

// TestStopDuringABurst sends SIGTERM at a random moment of 40 publishes, of 10 that wait for an object that doesn't exist, and of 20
// unpublishes. No answer is final, nothing is half made, and each call that failed succeeds when it is repeated.
func TestStopDuringABurst(t *testing.T) {
	t.Parallel()
	n, dice := newNode(t, "-v=2"), harness.Rand(t)
	for round := range harness.Scaled(1, 30) {
		data, late := map[string]string{"a": n.canary(), "b": n.canary()}, fmt.Sprint("late-", round)
		n.configMap("app", data)
		var calls []*stopped
		for i := range 70 {
			c := &stopped{kind: "comes", volume: n.short("app"), call: n.Publish}
			if i < 10 {
				c.kind, c.volume = "late", n.short(late)
			} else if i < 30 {
				c.kind, c.call = "goes", n.Unpublish
				n.mustPublish(c.volume)
			} else if err := n.StorePod(t.Context(), c.volume); err != nil { // so that the calls come all at once
				t.Fatal(err)
			}
			calls = append(calls, c)
		}
		n.stopAmid(calls, dice.IntN(60))
		n.wantNothingHalfMade(calls, data)
		n.mustStart()
		n.configMap(late, data)
		var stay []*harness.Volume
		for _, c := range calls {
			if c.kind != "goes" {
				stay = append(stay, c.volume)
			}
			if c.answer == nil {
				continue
			}
			if err := c.call(t.Context(), c.volume); err != nil {
				t.Errorf("the repeated call of a volume that %s: %v", c.kind, err)
			}
		}
		n.wantMounts(len(stay))
		value := n.value("app")
		for _, v := range stay {
			if v.Attributes["configMap"] == late {
				n.wantContent(v, "a", data["a"])
			} else {
				n.arrives(v, "key", value, soon)
			}
		}
		n.unpublishAll(stay)
	}
}

// stopped is a call under way at a stop, and its answer. Of the volumes that are late, the object comes after the stop.
type stopped struct {
	kind   string
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
		isLate := c.kind == "late"
		if final || c.answer == nil && (isLate || isMounted != (c.kind == "comes")) || isLate && isMounted {
			n.t.Errorf("a volume that %s: mounted at %s: %t, the answer was %v", c.kind, target, isMounted, c.answer)
		}
		if isMounted {
			if err := n.showsJust(c.volume, data); err != nil {
				n.t.Errorf("a volume that %s: %v", c.kind, err)
			}
		} else if _, err := os.Lstat(target); !os.IsNotExist(err) {
			n.t.Errorf("left of a target that is not mounted: %s (%v)", target, err)
		}
	}
	if len(mounted) > 0 {
		n.t.Errorf("left of volumes that were unpublished: %v", mounted)
	}
}
