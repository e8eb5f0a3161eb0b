package publisher

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

func TestAPublishThatPanicsLeavesNothingInTheWay(t *testing.T) {
	for _, method := range []string{"Create", "Attach", "Attached"} {
		inBubbleOf(t, method, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			e.mounts.on(method, func() error { panic("out of luck") })
			e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, "volume v1: "+failure.ErrPanicked.Error())
			e.mounts.on(method, nil)
			synctest.Wait()
			if method != "Attached" { // otherwise the next call finds the volume
				if left := e.objects.registrations(); len(left) > 0 || e.used() != 0 {
					e.Errorf("left registered: %v, %d bytes counted", left, e.used())
				}
				r.Attributes["optional"] = "true" // another spec: the first one is forgotten
			}
			e.publish(r)
			e.updateApp(r, "a", "2")
			e.end(r)
		})
	}
}

// A change between the read of the objects and the moment at which the volume is mounted must not be lost.
func TestAChangeDuringAPublishIsNotLost(t *testing.T) {
	for _, method := range []string{"Create", "Attach", "Close"} {
		inBubbleOf(t, method, func(e *env) {
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
		e.end(r)
	})
}

// A mount that somebody removed is logged. A volume that was never mounted is not.
func TestAMountThatVanishes(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		for want := range 2 {
			e.publish(r)
			e.wantLines(want, "Volume is no longer mounted", `pod="shop/pod-v1"`)
			e.wantFiles(r, "a", "1")
			e.mounts.vanish(r.Target)
		}
	})
}

// If links cannot be created after the switch, the write fails although its files are visible.
func TestAWriteThatFailsAfterTheSwitchCounts(t *testing.T) {
	inBubble(t, func(e *env) {
		e.publishApp()
		e.writes.set(nil, func() error { return errFault })
		e.update(configMap("app"), "a", strings.Repeat("2", 5000))
		// The last generation stays for its readers.
		if used := e.used(); used != taken(2, 1)+pageSize+2*inodeSize {
			t.Errorf("%d bytes counted, want what the files take now", used)
		}
		v := e.lookup("v1")
		if v.vol.files.Shown[configMap("app")] != e.objects.get(configMap("app")).Version {
			t.Error("an older answer would be taken for a newer one")
		}
	})
}

// One volume's panic is an error of that volume, and is retried.
func TestAPanicOfAReconcile(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(configMap("other"), "b", "1")
		r, other := e.publishNew("v1"), e.request("v2", "configMap", "other")
		e.publish(other)
		e.writes.set(func() error { panic(canary) }, nil)
		e.update(configMap("app"), "a", "2")
		e.writes.set(nil, nil)
		e.update(configMap("other"), "b", "2")
		e.wantFiles(other, "b", "2")
		lines := e.logs.With("Something panicked", `volumeID="v1"`, `panicType="string"`)
		if len(lines) == 0 || !strings.Contains(lines[0], "stack=") {
			t.Errorf("logged %q", lines)
		}
		// The logs are searched for canary, the value of the panic, at the end of the test.
		after(retryMax)
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
		e.end(r, other)
	})
}

// What the files showed before must be removed even if the object is deleted meanwhile and the first try to remove it fails.
func TestAFailedPruneIsTriedAgain(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.update(configMap("app"), "a", "2")
		e.remove(configMap("app"))
		e.mounts.failAt("IsMountedAt", unix.EMFILE)
		e.mounts.failAt("Reopen", unix.EMFILE)
		after(pruneTime + time.Second)
		e.wantProblem(r, "not found")
		e.wantGenerations(r, 2)
		e.mounts.failAt("Reopen", nil)
		after(retryMax)
		e.wantGenerations(r, 1)
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "not found")
	})
}

// A 404 of something between the plugin and the API server says nothing about an object.
func TestA404OfARequestIsNoAbsence(t *testing.T) {
	inBubble(t, func(e *env) {
		notFound := apierrors.NewGenericServerResponse(404, "get", resourceOf(configMap("app")), "app", "default backend - 404", 0, true)
		cause := fmt.Errorf("%w: %w", manager.ErrNotSynced, notFound)
		r := e.publishApp("configMap", "app", "optional", "true")
		e.objects.failWith(configMap("app"), cause)
		e.restart()
		e.wait(2 * testResync)
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		waiting := e.waiting(e.request("v2", "configMap", "app", "optional", "true"))
		e.wantReason(<-waiting, failure.ReasonUnavailable, "")
	})
}
