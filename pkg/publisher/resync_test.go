package publisher

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/volume"
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

// TestRestingVolumes: a current volume whose objects report their changes has a resync ten times more rarely. One that is not current, or that
// needs consent, has each.
func TestRestingVolumes(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.opts.Reported = true
		e.restart()
		e.publish(e.request("v"))
		resyncs := func(least, most int) {
			t.Helper()
			e.objects.takeRefreshes(configMap("app"))
			after(30 * e.opts.ResyncInterval)
			synctest.Wait()
			if n := len(e.objects.takeRefreshes(configMap("app"))); n < least || n > most {
				t.Errorf("%d resyncs, want %d to %d", n, least, most)
			}
		}
		resyncs(2, 4)
		e.objects.remove(configMap("app"))
		resyncs(29, 31)
		e.objects.put(configMap("app"), "a", "2")
		resyncs(2, 5)
		e.objects.rollouts[configMap("app")] = "0%"
		e.objects.put(configMap("app"), "a", "3")
		e.wantCondition(ConditionHeld)
		resyncs(29, 31)
	})
}

// TestLostReport: a volume shows a change that nobody reported after ten resyncs at the latest.
func TestLostReport(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.opts.Reported = true
		e.restart()
		r := e.request("v")
		e.publish(r)
		e.objects.Subscribe(func(volume.ServiceAccount, volume.Ref) {})
		for i := range 5 {
			after(time.Duration(i) * e.opts.ResyncInterval)
			value := fmt.Sprint("unreported ", i)
			e.objects.put(configMap("app"), "a", value)
			after(10 * e.opts.ResyncInterval)
			synctest.Wait()
			e.wantFiles(r, "a", value)
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
		all := make([]binding.Request, count) // each is a pod's of its own
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
