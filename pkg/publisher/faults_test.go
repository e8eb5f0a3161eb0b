package publisher

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// Whatever fails in a publish, nothing is left, and the next publish succeeds.
func TestAFailedPublishLeavesNothing(t *testing.T) {
	for _, test := range []struct {
		name    string
		fail    func(e *env)
		succeed func(e *env)
		want    error
	}{
		{name: "Create", fail: func(e *env) { e.mounts.failAt("Create", errFault) }, want: errFault},
		{name: "Write", fail: func(e *env) { e.writes.set(func() error { return unix.ENOSPC }, nil) }, want: unix.ENOSPC},
		{name: "Write, after the files are there", fail: func(e *env) { e.writes.set(nil, func() error { return errFault }) }, want: errFault},
		{name: "the name of the pod", fail: func(e *env) { e.p.opts.AttributePrefix = "nobody.has." }, succeed: func(e *env) { e.p.opts.AttributePrefix = "user.refvol." }},
		{name: "Attach", fail: func(e *env) { e.mounts.failAt("Attach", errFault) }, want: errFault},
		{name: "Attach and Close", fail: func(e *env) {
			e.mounts.failAt("Attach", errFault)
			e.mounts.failAt("Close", errors.New("another fault"))
		}, want: errFault},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				test.fail(e)
				err := e.p.Publish(e.ctx, r)
				if err == nil || (test.want != nil && !errors.Is(err, test.want)) {
					t.Fatalf("got %v, want %v", err, test.want)
				}
				if ReasonOf(err) != 0 {
					t.Errorf("reason %d for a fault of the node", ReasonOf(err))
				}
				for _, method := range []string{"Create", "Attach", "Close"} {
					e.mounts.on(method, nil)
				}
				e.writes.set(nil, nil)
				if test.succeed != nil {
					test.succeed(e)
				}
				e.wantNothing()
				e.mounts.check()
				after(time.Hour) // no retry of it either
				e.wantNothing()

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

func TestAPublishThatPanicsLeavesNothingInTheWay(t *testing.T) {
	for _, method := range []string{"Create", "Attach", "Attached"} {
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.mounts.on(method, func() error { panic("out of luck") })
				e.wantReason(e.p.Publish(e.ctx, r), ReasonUnavailable, "volume v1: "+errPanicked.Error())
				e.mounts.on(method, nil)
				synctest.Wait()
				if method != "Attached" { // else the next call finds the volume
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

// A change between the look at the objects and the moment at which the volume is
// live must not be lost, whenever it comes.
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
