package publisher

import (
	"testing"
	"testing/synctest"

	"github.com/refvol/refvol/pkg/failure"
)

func TestAPublishThatPanicsLeavesNothingInTheWay(t *testing.T) {
	for _, method := range []string{"Create", "Attach", "Attached"} {
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.mounts.on(method, func() error { panic("out of luck") })
				e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, "volume v1: "+failure.ErrPanicked.Error())
				e.mounts.on(method, nil)
				synctest.Wait()
				if method != "Attached" { // otherwise the next call finds the volume
					if left := e.objects.registrations(); len(left) > 0 || e.used() != 0 {
						t.Errorf("left registered: %v, %d bytes counted", left, e.used())
					}
					r.Attributes["optional"] = "true" // another spec: the first one is forgotten
				}
				e.publish(r)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "2")
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// A change between the read of the objects and the moment at which the volume is mounted must not be lost.
func TestAChangeDuringAPublishIsNotLost(t *testing.T) {
	for _, method := range []string{"Create", "Attach", "Close"} {
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.mounts.on(method, func() error {
					e.mounts.on(method, nil)
					e.objects.put(configMap("app"), "a", "2")
					return nil
				})
				e.publish(r)
				e.settle()
				e.wantFiles(r, "a", "2")
			})
		})
	}
}

// If a volume cannot be attached, it is unmounted again. If that fails too, the error names both.
func TestAMountThatFails(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		shown := "show volume v1 at " + r.Target + ": " + errFault.Error()
		e.mounts.failAt("Attach", errFault)
		if err := e.p.Publish(e.ctx, r); err == nil || failure.ReasonOf(err) != 0 || err.Error() != shown {
			t.Errorf("got %v, want %s", err, shown)
		}
		e.wantNothing()
		e.mounts.failAt("Unmount", errFault)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, shown+"; undo: "+errFault.Error())
		e.mounts.failAt("Unmount", nil)
		e.mounts.failAt("Attach", nil)
		e.publish(r)
		e.unpublish(r)
		e.wantNothing()
	})
}

// A mount that somebody removed is logged. A volume that was never mounted is not.
func TestAMountThatVanishes(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		for want := range 2 {
			e.publish(r)
			if lines := e.logs.With("Volume is no longer mounted", `pod="shop/pod-v1"`); len(lines) != want {
				t.Errorf("the log has %q, want %d lines", lines, want)
			}
			e.wantFiles(r, "a", "1")
			e.mounts.vanish(r.Target)
		}
	})
}
