package publisher

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

func TestRepublishOfALiveVolumeSucceeds(t *testing.T) {
	group := int64(1)
	for _, test := range []struct {
		name   string
		change func(e *env, r *binding.Request)
	}{
		{"with another group", func(_ *env, r *binding.Request) { r.FSGroup = &group }},
		{"with another service account", func(_ *env, r *binding.Request) { r.Pod.ServiceAccount = "other" }},
		{"with nil attributes' kin", func(_ *env, _ *binding.Request) {}},
		{"while its object is missing", func(e *env, _ *binding.Request) { e.objects.remove(configMap("app")) }},
		{"while its object is out of reach", func(e *env, _ *binding.Request) { e.objects.failWith(configMap("app"), errors.New("timeout")) }},
		{"while the plugin stops", func(e *env, _ *binding.Request) { e.p.StopWaiting() }},
		{"while its mount can't be examined", func(e *env, _ *binding.Request) { e.mounts.failAt("Check", errFault) }},
		{"while its target is outside", func(e *env, _ *binding.Request) { e.mounts.failAt("Check", mount.ErrOutside) }},
		{"that no longer tells the pod", func(_ *env, r *binding.Request) {
			r.Pod, r.PodErr = volume.Pod{}, errors.New("podInfoOnMount is off")
		}},
	} {
		inBubbleOf(t, test.name, func(e *env) {
			r := e.publishApp()
			pod := r.Pod
			test.change(e, &r)
			e.publish(r)
			e.wantFiles(r, "a", "1")
			if r.PodErr == nil {
				pod = r.Pod
			}
			if got := e.lookup("v1").wanted.request; got.Pod != pod || got.PodErr != nil {
				e.Errorf("it goes on for %v, %v, want %v", got.Pod, got.PodErr, pod)
			}
		})
	}
}

// A newer plugin may refuse what an older one accepted, but not for a mounted volume.
func TestRepublishDoesNotParse(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.lookup("v1").wanted.request.Attributes = map[string]string{"configMap": "app", "noSuchThing": "1"}
		r.Attributes["noSuchThing"] = "1"
		e.publish(r)
		e.updateApp(r, "a", "2")
		e.unpublish(r)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonInvalid, "")
		e.wantNothing()
	})
}

func TestRepublishWithAnotherSpecIsRefused(t *testing.T) {
	for _, test := range []struct {
		what   string
		change func(r *binding.Request)
	}{
		{"target path", func(r *binding.Request) { r.Target += "2" }},
		{"pod UID", func(r *binding.Request) { r.Pod.UID = types.UID("other") }},
		{"readonly", func(r *binding.Request) { r.ReadOnly = false }},
		{"volume attributes", func(r *binding.Request) { r.Attributes = map[string]string{"configMap": "other"} }},
		{"volume attributes", func(r *binding.Request) { r.Attributes = map[string]string{"configMap": "app", "optional": "false"} }},
		{"volume attributes", func(r *binding.Request) { r.Attributes = nil }},
	} {
		inBubbleOf(t, test.what, func(e *env) {
			r := e.publishApp()
			other := r
			test.change(&other)
			e.wantReason(e.p.Publish(e.ctx, other), failure.ReasonExists, "volume v1 is published already, with another "+test.what)
			e.updateApp(r, "a", "2")
			e.end(r)
		})
	}
}

// A pod may be reading it, so its publish must not fail.
func TestAMountThatCannotBeTakenOverStays(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(e *env, r *binding.Request)
	}{
		{"pod unknown", func(_ *env, r *binding.Request) { r.PodErr = errFault }},
		{"volume can't be read", func(e *env, _ *binding.Request) { e.mounts.failAt("Open", errFault) }},
		{"mount can't be looked at", func(e *env, _ *binding.Request) { e.mounts.failAt("Check", errFault) }},
		{"target is outside", func(e *env, _ *binding.Request) { e.mounts.failAt("Check", mount.ErrOutside) }},
	} {
		inBubbleOf(t, test.name, func(e *env) {
			r := e.publishApp()
			e.restartUnread()
			test.prepare(e, &r)
			e.publish(r)
			e.settle()
			e.wantFiles(r, "a", "1")
			if e.mounts.count("Unmount") > 0 || e.mounts.count("Create") > 1 {
				e.Error("the mount was touched")
			}
		})
	}
}

// A volume whose spec an earlier version accepted stays mounted, and its pod's containers can be restarted: the publish succeeds. Its
// author and the status are told why it is not updated.
func TestAMountOfARefusedSpecStays(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.restartUnread()
		refused := r
		refused.Attributes = map[string]string{"configMap": "app", "noSuchThing": "1"}
		e.publish(refused, refused)
		e.wantEvents("VolumeUpdateFailed: noSuchThing")
		e.update(configMap("app"), "a", "2")
		e.wantFiles(r, "a", "1")
		if s := e.status(); s.Condition != failure.VolumeUpdateFailed || !strings.Contains(s.Reason, "noSuchThing") || s.Pod != r.Pod {
			t.Errorf("status %+v", s)
		}
		if left := e.objects.registrations(); len(left) > 0 {
			t.Errorf("left registered: %v", left)
		}
		e.end(r)
	})
}

// A pinned volume is written once. No change, resync, restart or takeover rewrites it, and nothing is watched for it.
func TestAPinnedVolumeIsNeverRewritten(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp("configMap", "app", "updatePolicy", "Pinned")
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
		e.wantBetween("%d registrations in the restart", e.objects.registrationsMade-before, 0, 0)
		untouched("after a restart")
		e.objects.put(configMap("app"), "a", "3")
		untouched("after a change behind a restart")
		e.end(r)
	})
}

// With onDelete: Remove, the files of a deleted object are removed, those of others stay, and they come back with the object. A first
// publish still waits for it.
func TestOnDeleteRemove(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]", "onDelete", "Remove")
		e.objects.put(configMap("app"), "a", "1")
		waiting := e.waiting(r)
		e.objects.put(secret("db"), "password", "x")
		e.wantDone(waiting)
		e.remove(secret("db"))
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		e.resume()
		e.wantFiles(r, "a", "1")
		e.update(secret("db"), "password", "y")
		e.wantFiles(r, "a", "1", "password", "y")
		e.end(r)
	})
}

// While a volume may have files of two versions, its status doesn't report the new one as shown.
func TestAHalfWrittenVolumeIsNotShown(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp("configMap", "app", "writeStrategy", "InPlace")
		first := e.objects.get(configMap("app")).Version
		e.writes.set(nil, func() error { return errFault })
		e.update(configMap("app"), "a", "2")
		if s := e.status(); s.Shown[configMap("app")] != first || s.Condition != failure.VolumeUpdateFailed {
			t.Errorf("after a failed write: %s, shown %v, want %v", s.Condition, s.Shown, first)
		}
		// The record names the new version before the files are rewritten. If a restarted plugin cannot verify them, that must not count as
		// success.
		e.writes.set(nil, nil)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.resume()
		if s := e.status(); s.Shown[configMap("app")] != (volume.Version{}) {
			t.Errorf("after a restart: %s, shown %v", s.Condition, s.Shown)
		}
		e.objects.failWith(configMap("app"), nil)
		e.wait(2 * testResync)
		if s := e.status(); s.Shown[configMap("app")] != e.objects.get(configMap("app")).Version || s.Condition != ConditionCurrent {
			t.Errorf("after a write: %s, shown %v", s.Condition, s.Shown)
		}
		e.end(r)
	})
}
