package publisher

import (
	"errors"
	"testing"
)

// TestNotShared: where mounts reach no pod, no volume is made. Those of the process before, whose mounts did,
// are updated, published again and unpublished.
func TestNotShared(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		first, second := e.request("first"), e.request("second")
		e.publish(first)
		e.publish(second)
		e.opts.NotShared = func() error { return errors.New("set it") }
		for _, restart := range []func(){e.restart, e.restartUnread} {
			restart()
			for _, r := range []Request{first, second} {
				e.publish(r)
			}
		}
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(first, "a", "2")

		third := e.request("third")
		made := e.mounts.made
		for range 2 {
			e.wantReason(e.p.Publish(e.ctx, third), ReasonUnavailable, "set it")
		}
		e.unpublish(third)
		e.unpublish(first)
		e.wantReason(e.p.Publish(e.ctx, first), ReasonUnavailable, "set it")
		if e.mounts.made != made {
			t.Errorf("%d file systems made, want none", e.mounts.made-made)
		}
		e.unpublish(second)
		e.wantNothing()
	})
}
