package publisher

import (
	"testing"
	"testing/synctest"
)

// TestAHangingVolumeHoldsUpNoStart: a container that keeps the plugin from opening its volume delays only its own pod. Once the volume can
// be opened, it is taken over as usual.
func TestAHangingVolumeHoldsUpNoStart(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		hangs, other := e.request("hangs"), e.request("other")
		e.publish(hangs)
		e.publish(other)
		e.halt()
		release := e.mounts.hangs(hangs.Target)
		e.restart() // Restore has returned
		e.publish(e.request("new"))
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(other, "a", "2")
		e.wantFiles(hangs, "a", "1")
		e.publish(hangs) // the kubelet's republish makes no second mount
		release()
		synctest.Wait()
		e.rest()
		e.wantFiles(hangs, "a", "2")
		if n := e.mounts.count("Create"); n != 3 {
			t.Errorf("%d mounts were made", n)
		}
	})
}
