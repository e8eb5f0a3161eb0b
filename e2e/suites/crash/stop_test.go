package crash

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// TestStopDuringABurst sends SIGTERM at a random moment of 40 publishes and 20 unpublishes. No answer is final, nothing is half made, and each
// call that failed succeeds when it is repeated.
func TestStopDuringABurst(t *testing.T) {
	t.Parallel()
	const goes = 20 // the first of 60
	n, dice := lab.NewNode(t, "-v=2"), harness.Rand(t)
	for range harness.Scaled(1, 30) {
		data := map[string]string{"a": n.Canary(), "b": n.Canary()}
		n.ConfigMap("app", data)
		volumes, answers := make([]*harness.Volume, 60), make([]error, 60)
		for i := range volumes {
			volumes[i] = n.Short("app")
			if i < goes {
				n.MustPublish(volumes[i])
			} else {
				must.Do(t, n.StorePod(t.Context(), volumes[i])) // so that the calls come all at once
			}
		}
		call := func(i int) error {
			if i < goes {
				return n.Unpublish(t.Context(), volumes[i])
			}
			return n.Publish(t.Context(), volumes[i])
		}
		var running sync.WaitGroup
		var answered atomic.Int64
		for i := range volumes {
			running.Go(func() {
				answers[i] = call(i)
				answered.Add(1)
			})
		}
		at := dice.IntN(len(volumes))
		harness.Eventually(t, world.Soon, func() error {
			if got := answered.Load(); got < int64(at) {
				return fmt.Errorf("%d calls were answered, want %d", got, at)
			}
			return nil
		})
		must.Do(t, n.Process().Signal(syscall.SIGTERM))
		running.Wait()                       // their connection stays until the last has its answer
		must.Do(t, n.Terminate(t.Context())) // fails unless the status was 0

		mounted := mountIDs(n)
		n.WantMounts(len(mounted)) // none is mounted twice
		for i, v := range volumes {
			_, isMounted := mounted[n.Target(v)]
			isFinal := answers[i] != nil && harness.IsFinalForKubelet(answers[i])
			if isFinal || answers[i] == nil && isMounted != (i >= goes) {
				t.Errorf("volume %d: mounted: %t, the answer was %v", i, isMounted, answers[i])
			}
			if isMounted {
				must.Do(t, n.ShowsJust(v, data))
			}
		}
		n.MustStart()
		for i, answer := range answers {
			if answer == nil {
				continue
			}
			if err := call(i); err != nil {
				t.Errorf("volume %d: the repeated call: %v", i, err)
			}
		}
		value := n.Value("app")
		for _, v := range volumes[goes:] {
			n.Arrives(v, "key", value, world.Soon)
		}
		n.UnpublishAll(volumes[goes:])
	}
}

// TestAPublishThatWaitsEndsWithThePlugin: at SIGTERM it is told why, and doesn't use up the time that running calls have to end.
func TestAPublishThatWaitsEndsWithThePlugin(t *testing.T) {
	t.Parallel()
	n := lab.NewNode(t)
	v := n.Short("none")
	answer := n.Publishing(v)
	n.HasCondition(v, "RefNotFound")
	must.Do(t, n.Process().Signal(syscall.SIGTERM))
	if err := n.Answer(answer, world.Soon); err == nil || harness.IsFinalForKubelet(err) || !strings.Contains(err.Error(), "the plugin is stopping") {
		t.Errorf("the publish ended with %v", err)
	}
	must.Do(t, n.Terminate(t.Context())) // fails unless the status was 0
	n.MustStart()
	n.MustUnpublish(v)
}
