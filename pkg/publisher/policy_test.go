package publisher

import (
	"testing"
	"testing/synctest"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// A pinned volume is written once. No change, resync, restart or takeover rewrites it, and nothing is watched for it.
func TestAPinnedVolumeIsNeverRewritten(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1", "configMap", "app", "updatePolicy", "Pinned")
		e.publish(r)
		untouched := func(when string) {
			t.Helper()
			after(3 * testResync)
			synctest.Wait()
			e.wantFiles(r, "a", "1")
			e.wantProblem(r, "")
			if n := len(e.objects.registrations()); n != 0 {
				t.Errorf("%s: %d registrations", when, n)
			}
			if n := e.mounts.count("Reopen"); n > 1 { // a restarted process prunes once
				t.Errorf("%s: the mount was opened %d times", when, n)
			}
		}
		untouched("after the publish")
		e.objects.put(configMap("app"), "a", "2")
		untouched("after a change")
		e.objects.remove(configMap("app"))
		e.publish(r)
		untouched("after a republish")
		before := e.objects.registrationsMade
		e.restart()
		if n := e.objects.registrationsMade - before; n != 0 {
			t.Errorf("%d registrations in the restart", n)
		}
		untouched("after a restart")
		e.objects.put(configMap("app"), "a", "3")
		untouched("after a change behind a restart")
		e.unpublish(r)
		e.wantNothing()
	})
}

// With onDelete: Remove, the files of a deleted object are removed, those of others stay, and they come back with the object. A first
// publish still waits for it.
func TestOnDeleteRemove(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]", "onDelete", "Remove")
		e.objects.put(configMap("app"), "a", "1")
		waiting := e.publishing(r)
		e.wantWaiting(waiting)
		e.objects.put(secret("db"), "password", "x")
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		e.objects.remove(secret("db"))
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "1")
		e.objects.put(secret("db"), "password", "y")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "y")
		e.unpublish(r)
		e.wantNothing()
	})
}

// While a volume may have files of two versions, its status doesn't report the new one as shown.
func TestAHalfWrittenVolumeIsNotShown(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.publish(r)
		first := e.objects.get(configMap("app")).Version
		e.writes.set(nil, func() error { return errFault })
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		if s := e.status(); s.Shown[configMap("app")] != first || s.Condition != failure.VolumeUpdateFailed {
			t.Errorf("after a failed write: %s, shown %v, want %v", s.Condition, s.Shown, first)
		}
		// The record names the new version before the files are rewritten. If a restarted plugin cannot verify them, that must not count as
		// success.
		e.writes.set(nil, nil)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.restart()
		e.settle()
		if s := e.status(); s.Shown[configMap("app")] != (volume.Version{}) {
			t.Errorf("after a restart: %s, shown %v", s.Condition, s.Shown)
		}
		e.objects.failWith(configMap("app"), nil)
		after(2 * testResync)
		e.settle()
		if s := e.status(); s.Shown[configMap("app")] != e.objects.get(configMap("app")).Version || s.Condition != ConditionCurrent {
			t.Errorf("after a write: %s, shown %v", s.Condition, s.Shown)
		}
		e.unpublish(r)
		e.wantNothing()
	})
}
