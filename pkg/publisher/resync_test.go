package publisher

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// TestResyncsShareMoments: the resyncs of many volumes wake the process up at a few moments of each interval.
func TestResyncsShareMoments(t *testing.T) {
	inBubble(t, func(e *env) {
		const count = 500
		e.objects.put(configMap("app"), "a", "1")
		for i := range count {
			e.publish(e.request(fmt.Sprint("v", i)))
		}
		after(3 * e.opts.ResyncInterval)
		synctest.Wait() // this moment may be one of them
		e.objects.takeRefreshes(configMap("app"))
		after(e.opts.ResyncInterval)
		synctest.Wait()
		refreshes, moments := e.objects.takeRefreshes(configMap("app")), map[time.Time]bool{}
		for _, at := range refreshes {
			moments[at.Round(time.Microsecond)] = true
		}
		if len(refreshes) != count || len(moments) > resyncSlots+1 {
			t.Errorf("%d resyncs of %d volumes at %d moments", len(refreshes), count, len(moments))
		}
	})
}

// TestPodsRestWithoutGoroutines: a pod of which no volume is due costs no stack.
func TestPodsRestWithoutGoroutines(t *testing.T) {
	inBubble(t, func(e *env) {
		const count = 50
		e.objects.put(configMap("app"), "a", "1")
		synctest.Wait()
		before := runtime.NumGoroutine()
		all := make([]Request, count) // each is a pod's of its own
		for i := range all {
			all[i] = e.request(fmt.Sprint("v", i))
			e.publish(all[i])
		}
		after(3 * e.opts.ResyncInterval) // generations that readers may still use are gone
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > 1 { // Go's runtime may have one of its own for a moment
			t.Errorf("%d goroutines more with %d pods", more, count)
		}
		e.objects.put(configMap("app"), "a", "2")
		synctest.Wait()
		for _, r := range all {
			e.wantFiles(r, "a", "2")
		}
	})
}
