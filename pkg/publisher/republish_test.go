package publisher

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
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
		{"that no longer tells the pod", func(_ *env, r *binding.Request) {
			r.Pod, r.PodErr = volume.Pod{}, errors.New("podInfoOnMount is off")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				pod := r.Pod
				test.change(e, &r)
				e.publish(r)
				e.wantFiles(r, "a", "1")
				if r.PodErr == nil {
					pod = r.Pod
				}
				if got := e.lookup("v1").wanted.request; got.Pod != pod || got.PodErr != nil {
					t.Errorf("it goes on for %v, %v, want %v", got.Pod, got.PodErr, pod)
				}
			})
		})
	}
}

// A newer plugin may refuse what an older one accepted, but not for a mounted volume.
func TestRepublishDoesNotParse(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.lookup("v1").wanted.request.Attributes = map[string]string{"configMap": "app", "noSuchThing": "1"}
		r.Attributes["noSuchThing"] = "1"
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
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
		t.Run(test.what, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				other := r
				test.change(&other)
				e.wantReason(e.p.Publish(e.ctx, other), failure.ReasonExists, "volume v1 is published already, with another "+test.what)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "2")
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

func TestRepublishIsNeverFinalOverTheMount(t *testing.T) {
	for _, err := range []error{errFault, mount.ErrOutside} {
		inBubble(t, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			e.publish(r)
			e.mounts.failAt("Check", err)
			e.publish(r)
			e.mounts.failAt("Check", nil)
			e.objects.put(configMap("app"), "a", "2")
			e.settle()
			e.wantFiles(r, "a", "2")
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
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.restartUnread()
				test.prepare(e, &r)
				e.publish(r)
				e.settle()
				e.wantFiles(r, "a", "1")
				if e.mounts.count("Unmount") > 0 || e.mounts.count("Create") > 1 {
					t.Error("the mount was touched")
				}
			})
		})
	}
}

// A volume whose spec an earlier version accepted stays mounted, and its pod's containers can be restarted: the publish succeeds. Its
// author and the status are told why it is not updated.
func TestAMountOfARefusedSpecStays(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.restartUnread()
		refused := r
		refused.Attributes = map[string]string{"configMap": "app", "noSuchThing": "1"}
		e.publish(refused)
		e.publish(refused)
		e.wantEvents("VolumeUpdateFailed: noSuchThing")
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1")
		if s := e.status(); s.Condition != failure.VolumeUpdateFailed || !strings.Contains(s.Reason, "noSuchThing") || s.Pod != r.Pod {
			t.Errorf("status %+v", s)
		}
		if left := e.objects.registrations(); len(left) > 0 {
			t.Errorf("left registered: %v", left)
		}
		e.unpublish(r)
		e.wantNothing()
	})
}
