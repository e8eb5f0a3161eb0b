package publisher

import (
	"fmt"
	"testing"
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
		e.objects.takeRefreshes(configMap("app"))
		after(e.opts.ResyncInterval)
		refreshes, moments := e.objects.takeRefreshes(configMap("app")), map[time.Time]bool{}
		for _, at := range refreshes {
			moments[at.Round(time.Microsecond)] = true
		}
		if len(refreshes) < count-count/resyncSlots*2 || len(refreshes) > count+count/resyncSlots*2 || len(moments) > resyncSlots+1 {
			t.Errorf("%d resyncs of %d volumes at %d moments", len(refreshes), count, len(moments))
		}
	})
}
