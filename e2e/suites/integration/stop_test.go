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
		b := &burst{node: n, data: map[string]string{"a": n.canary(), "b": n.canary()}, failed: map[*harness.Volume]error{}}
		late := fmt.Sprint("late-", round)
		for i := range 40 {
			b.comes = append(b.comes, b.short("app"))
			if i < 20 {
				b.goes = append(b.goes, b.short("app"))
			}
			if i < 10 {
				b.late = append(b.late, b.short(late))
			}
		}
		b.configMap("app", b.data)
		b.run(dice.IntN(len(b.comes) + len(b.goes)))
		b.wantNothingHalfMade()
		b.mustStart()
		b.configMap(late, b.data)
		b.again()
	}
}

// burst is one round: its volumes and what became of their calls. late are volumes whose object comes after the stop.
type burst struct {
	*node
	data              map[string]string
	late, comes, goes []*harness.Volume
	// mu guards failed while calls run.
	mu     sync.Mutex
	failed map[*harness.Volume]error
}

// run makes all calls at once, and has the plugin end once so many of them have been answered.
func (b *burst) run(at int) {
	b.t.Helper()
	b.publishAll(b.goes)
	// Pods are stored one after another. They are stored first, so that the calls come all at once.
	publish := slices.Concat(b.late, b.comes)
	if err := inParallel(len(publish), len(publish), func(i int) error { return b.StorePod(b.t.Context(), publish[i]) }); err != nil {
		b.t.Fatal(err)
	}
	var calls sync.WaitGroup
	var answers atomic.Int64
	start := func(call func(context.Context, *harness.Volume) error, volumes []*harness.Volume) {
		for _, v := range volumes {
			calls.Go(func() {
				if err := call(b.t.Context(), v); err != nil {
					b.mu.Lock()
					defer b.mu.Unlock()
					b.failed[v] = err
				}
				answers.Add(1)
			})
		}
	}
	start(b.Publish, publish)
	start(b.Unpublish, b.goes)
	harness.Eventually(b.t, soon, func() error {
		if got := answers.Load(); got < int64(at) {
			return fmt.Errorf("%d calls were answered, want %d", got, at)
		}
		return nil
	})
	begin := time.Now()
	if err := b.Process().Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	select {
	case <-b.Process().Done():
	case <-time.After(drainTime + soon):
		b.t.Errorf("the plugin has not ended after %s: %v", time.Since(begin), b.Process().Kill())
	}
	took := time.Since(begin)
	calls.Wait()                                       // their connection stays until the last has its answer
	if err := b.Terminate(b.t.Context()); err != nil { // fails unless the status was 0
		b.t.Fatal(err)
	}
	b.t.Logf("SIGTERM after %d answers, %d calls failed, the end %s later", at, len(b.failed), took.Round(time.Millisecond))
}

// wantNothingHalfMade compares what the plugin left with its answers: each mount is complete, there is nothing else, and
// after each failure the kubelet goes on to take the volume for one that may be there.
func (b *burst) wantNothingHalfMade() {
	b.t.Helper()
	mounts, err := b.VolumeMounts()
	if err != nil {
		b.t.Fatal(err)
	}
	mounted := map[string]int{}
	for _, m := range mounts {
		mounted[m.Target]++
	}
	for kind, volumes := range map[string][]*harness.Volume{"late": b.late, "comes": b.comes, "goes": b.goes} {
		for _, v := range volumes {
			count, failure := mounted[b.Target(v)], b.failed[v]
			delete(mounted, b.Target(v))
			final := !slices.Contains([]codes.Code{codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted}, status.Code(failure))
			late := kind == "late"
			if final || count > 1 || failure == nil && (late || count == 1 != (kind == "comes")) || late && count > 0 {
				b.t.Errorf("a volume that %s: %d mounts at %s, the answer was %v", kind, count, b.Target(v), failure)
			}
			if count > 0 {
				if err := b.showsJust(v, b.data); err != nil {
					b.t.Errorf("a volume that %s: %v", kind, err)
				}
			} else if _, err := os.Lstat(b.Target(v)); !os.IsNotExist(err) {
				b.t.Errorf("left of a target that is not mounted: %s (%v)", b.Target(v), err)
			}
		}
	}
	if len(mounted) > 0 {
		b.t.Errorf("left of volumes that were unpublished: %v", mounted)
	}
}

// again repeats every call that failed, and ends all volumes.
func (b *burst) again() {
	b.t.Helper()
	var publish, unpublish []*harness.Volume
	for v := range b.failed {
		if slices.Contains(b.goes, v) {
			unpublish = append(unpublish, v)
		} else {
			publish = append(publish, v)
		}
	}
	b.publishAll(publish)
	b.unpublishEach(unpublish)
	all := slices.Concat(b.late, b.comes)
	b.wantMounts(len(all))
	for _, v := range b.late {
		b.wantContent(v, "a", b.data["a"])
	}
	value := b.value("app")
	for _, v := range b.comes {
		b.arrives(v, "key", value, soon)
	}
	b.unpublishAll(all)
}
