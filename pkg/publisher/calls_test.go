package publisher

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// gate blocks a method until it is opened.
type gate struct{ entered, opened chan struct{} }

// gateAt blocks the next calls of a method of the mounts until the gate opens.
func (e *env) gateAt(method string) *gate {
	g := &gate{entered: make(chan struct{}, 100), opened: make(chan struct{})}
	e.mounts.on(method, func(string) error {
		g.entered <- struct{}{}
		<-g.opened
		return nil
	})
	return g
}

// The publish waits for an object or for its pod.
func TestUnpublishCancelsAWaitingPublish(t *testing.T) {
	for _, sources := range []string{"[{configMap: {name: app}}]", podEnvSources} {
		inBubble(t, func(e *env) {
			e.pods.setSlow(endless)
			r := e.request("v1", "sources", sources)
			publish := e.waiting(r)
			begin := time.Now()
			e.unpublish(r)
			e.wantReason(<-publish, failure.ReasonBusy, "volume v1: the volume was unpublished meanwhile")
			e.wantTook(begin, 0)
			e.wantNothing()
		})
	}
}

func TestUnpublishEndsAPublishThatWrites(t *testing.T) {
	for _, method := range []string{"Create", "Attach"} {
		inBubbleOf(t, method, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			gate := e.gateAt(method)
			publish := e.publishing(r)
			<-gate.entered
			unpublish := e.unpublishing(r)
			e.wantWaiting(unpublish)
			close(gate.opened)
			e.wantReason(<-publish, failure.ReasonBusy, "")
			e.wantDone(unpublish)
			e.wantNothing()
		})
	}
}

func TestASecondCallIsRefused(t *testing.T) {
	const busy = "volume v1: another call for this volume is running"
	inBubble(t, func(e *env) {
		r := e.request("v1")
		waiting := e.waiting(r)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonBusy, busy)
		e.objects.put(configMap("app"), "a", "1")
		if err := <-waiting; err != nil {
			t.Fatalf("the first call suffered: %v", err)
		}

		gate := e.gateAt("Unmount")
		unpublish := e.unpublishing(r)
		<-gate.entered
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonBusy, busy)
		second := e.unpublishing(r)
		e.wantWaiting(second)
		other := e.publishNew("v2") // another volume is not affected
		close(gate.opened)
		e.wantDone(unpublish, second)
		e.wantBetween("%d unmounts", e.mounts.count("Unmount"), 1, 1)
		e.end(other)
	})
}

func TestCalls(t *testing.T) { each(t, inBubble, callsTests) }

var callsTests = map[string]func(e *env){
	"unpublish of another target keeps the volume": func(e *env) {
		r := e.publishApp()
		e.settle() // the mounts have been listed: nothing that was forgotten is taken over again
		other := r
		other.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.unpublish(other)
		e.updateApp(r, "a", "2")
		e.end(r)
	},
	"an unpublish of a target that leads out of the kubelet's directory is refused, until it doesn't": func(e *env) {
		r := e.publishApp()
		e.mounts.failAt("Unmount", fmt.Errorf("%s: %w", r.Target, mount.ErrOutside))
		for range 2 {
			e.wantReason(e.p.Unpublish(e.ctx, r.VolumeID, r.Target), failure.ReasonInvalid, "target_path: "+r.Target+": "+mount.ErrOutside.Error())
		}
		e.mounts.failAt("Unmount", nil)
		e.end(r)
	},
	"an unpublish that fails where nothing is mounted returns when the volume is forgotten: the next call would be refused until then": func(e *env) {
		r := e.request("v1")
		e.wantWaiting(e.publishing(r)) // the object is missing
		e.mounts.failAt("Unmount", errFault)
		entered, opened := make(chan struct{}), make(chan struct{})
		open := sync.OnceFunc(func() { close(opened) })
		defer open()
		e.objects.onUnregister = func() { close(entered); <-opened }
		unpublish := e.unpublishing(r)
		<-entered
		e.wantWaiting(unpublish)
		open()
		e.wantReason(<-unpublish, 0, fmt.Sprintf("unmount volume v1 from %s: %v", r.Target, errFault))
		e.objects.onUnregister = func() {}
		e.mounts.failAt("Unmount", nil)
		e.objects.put(configMap("app"), "a", "1")
		r.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.makeTarget(r)
		e.publish(r)
		e.wantLines(0, "Unpublished volume")
		e.end(r)
		e.wantLines(1, "Unpublished volume")
	},
	"publish lists all that is missing when the wait ends": func(e *env) {
		e.objects.put(secret("tls"), "tls.crt", "x")
		r := e.request("v1", "sources", `
- configMap: {name: app}
- secret: {name: db}
- secret: {name: tls, items: [{key: tls.key, path: key}]}
- secret: {name: extra, optional: true}`)
		begin := time.Now()
		err := e.p.Publish(e.ctx, r)
		e.wantTook(begin, testWait)
		e.wantReason(err, failure.ReasonNotFound, `sources[0].configMap: ConfigMap "shop/app" not found; `+
			`sources[1].secret: Secret "shop/db" not found; `+
			`sources[2].secret: Secret "shop/tls": references non-existent secret key: tls.key (it has tls.crt)`)
		e.wantNothing()
	},
	"StopWaiting ends each wait, and later ones": func(e *env) {
		waiting := e.waiting(e.request("v1"))
		begin := time.Now()
		e.p.StopWaiting()
		e.p.StopWaiting()
		e.wantReason(<-waiting, failure.ReasonUnavailable, `volume v1: the plugin is stopping: configMap: ConfigMap "shop/app" not found`)
		e.wantReason(e.p.Publish(e.ctx, e.request("v2")), failure.ReasonUnavailable, "")
		e.wantNothing()

		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v3")) // a volume that needs no wait still works
		e.wantTook(begin, 0)
	},
	// A volume whose spec an earlier version accepted stays mounted, and its pod's containers can be restarted: the publish succeeds. Its
	// author and the status are told why it is not updated.
	"a mount of a refused spec stays": func(e *env) {
		r := e.publishApp()
		e.restartUnread()
		refused := r
		refused.Attributes = map[string]string{"configMap": "app", "noSuchThing": "1"}
		e.publish(refused, refused)
		e.wantEvents("VolumeUpdateFailed: noSuchThing")
		e.update(configMap("app"), "a", "2")
		e.wantFiles(r, "a", "1")
		if s := e.status(); s.Condition != failure.VolumeUpdateFailed || !strings.Contains(s.Reason, "noSuchThing") || s.Pod != r.Pod {
			e.Errorf("status %+v", s)
		}
		wantIs(e, "%v registrations are left", len(e.objects.registrations()), 0)
		e.end(r)
	},
	"nothing is watched for a pinned volume, also after a restart": func(e *env) {
		r := e.publishApp("configMap", "app", "updatePolicy", "Pinned")
		made := e.objects.registrationsMade
		e.update(configMap("app"), "a", "2")
		e.resume()
		e.wait(3 * testResync)
		wantIs(e, "%v registrations were made", e.objects.registrationsMade, made)
		wantIs(e, "%v registrations are left", len(e.objects.registrations()), 0)
		e.wantBetween("the mount was opened %d times", e.mounts.count("Reopen"), 0, 1) // a restarted process prunes once
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		e.end(r)
	},
	"while a volume may have files of two versions, its status doesn't report the new one as shown": func(e *env) {
		r := e.publishApp("configMap", "app", "writeStrategy", "InPlace")
		first := e.objects.get(configMap("app")).Version
		e.writes.set(nil, func() error { return errFault })
		e.update(configMap("app"), "a", "2")
		e.wantCondition(failure.VolumeUpdateFailed)
		e.wantShown(configMap("app"), first)
		// The record names the new version before the files are rewritten. If a restarted plugin cannot verify them, that must not count as
		// success.
		e.writes.set(nil, nil)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.resume()
		e.wantShown(configMap("app"), volume.Version{})
		e.objects.failWith(configMap("app"), nil)
		e.wait(2 * testResync)
		e.wantCondition(ConditionCurrent)
		e.wantShown(configMap("app"), e.objects.get(configMap("app")).Version)
		e.end(r)
	},
}

func TestPublishReturnsAtTheChangeThatItWaitsFor(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "b", "2")
		r := e.request("v1", "configMap", "app", "items", "[{key: a, path: a}]")
		begin := time.Now()
		result := e.waiting(r)
		wantIs(e, "%v file systems were made before there was anything to write", e.mounts.count("Create"), 0)
		after(30 * time.Second)
		e.wantWaiting(result)
		e.objects.put(configMap("app"), "a", "1")
		e.wantDone(result)
		e.wantTook(begin, 30*time.Second)
		e.wantFiles(r, "a", "1")
		e.end(r)
	})
}

func TestPublishDoesNotWaitWhereThatIsOfNoUse(t *testing.T) {
	first, app := configMap("first"), configMap("app")
	forbidden := fmt.Errorf("%s: %w: %w", app, manager.ErrNotSynced, apierrors.NewForbidden(resourceOf(app), "app", errors.New("no RBAC policy matched")))
	overloaded := fmt.Errorf("%w: %w", manager.ErrNotSynced, apierrors.NewTooManyRequests("slow down", 1))
	fails := func(err error) func(e *env, _ *binding.Request) {
		return func(e *env, _ *binding.Request) { e.objects.failWith(app, err) }
	}
	for name, test := range map[string]struct {
		attributes []string
		prepare    func(e *env, r *binding.Request)
		reason     failure.Reason
		text       string
	}{
		"forbidden": {nil, fails(forbidden), failure.ReasonForbidden, `ConfigMap "shop/app": not synced with the API server yet: configmaps "app" is forbidden: no RBAC policy matched`},
		"forbidden behind another failure": {[]string{"sources", "[{configMap: {name: first}}, {configMap: {name: app}}]"}, func(e *env, _ *binding.Request) {
			e.objects.failWith(first, overloaded)
			e.objects.failWith(app, forbidden)
		}, failure.ReasonForbidden, ""},
		"forbidden although optional": {[]string{"configMap", "app", "optional", "true"}, fails(forbidden), failure.ReasonForbidden, ""},
		"a file where a directory is needed": {[]string{"sources", "[{configMap: {name: first}}, {configMap: {name: app, items: [{key: a, path: conf/a}]}}]"}, func(e *env, _ *binding.Request) {
			e.objects.put(first, "conf", "1")
			e.objects.put(app, "a", "2")
		}, failure.ReasonInvalid, `path "conf/a" can't be shown: "conf" is a file of the same volume; map one of the two keys to another path`},
		"not registered": {nil, fails(manager.ErrNotRegistered), failure.ReasonUnavailable, ""},
		"not read-only": {
			nil, func(_ *env, r *binding.Request) { r.ReadOnly = false }, failure.ReasonInvalid,
			"readOnly: Required value: must be true (set csi.readOnly: true in the pod's volume)",
		},
		"bad attributes": {
			[]string{"configMap", "app", "defaultMode", "0999"},
			fails(nil), failure.ReasonInvalid,
			`defaultMode: Invalid value: "0999": must be an octal number with a leading zero, from "0000" to "0777"`,
		},
		"nobody knows the pod": {nil, func(_ *env, r *binding.Request) {
			r.Pod, r.PodErr = volume.Pod{}, errors.New("volume_context: Required value")
		}, failure.ReasonInvalid, "volume_context: Required value"},
	} {
		inBubbleOf(t, name, func(e *env) {
			r := e.request("v1", test.attributes...)
			test.prepare(e, &r)
			begin := time.Now()
			e.wantReason(e.p.Publish(e.ctx, r), test.reason, test.text)
			e.wantTook(begin, 0)
			e.wantNothing()
		})
	}
}

func TestPublishWithoutAWait(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.PublishWait = 0 }, func(e *env) {
		e.wantReason(e.p.Publish(e.ctx, e.request("v1")), failure.ReasonNotFound, `configMap: ConfigMap "shop/app" not found`)
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
	})
}

// TestMountsThatReachNoPod keep new volumes from being made. Volumes that exist are kept current.
func TestMountsThatReachNoPod(t *testing.T) {
	notShared := errors.New("mounts don't reach the node")
	inBubbleWith(t, func(o *Options) { o.NotShared = func() error { return notShared } }, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, "mounts don't reach the node")
		e.wantNothing()
		notShared = nil
		e.publish(r)
		notShared = errors.New("mounts don't reach the node any more")
		e.updateApp(r, "a", "2")
	})
}

func TestRepublishOfALiveVolumeSucceeds(t *testing.T) {
	group := int64(1)
	for _, test := range []struct {
		name   string
		change func(e *env, r *binding.Request)
	}{
		{"with another group", func(_ *env, r *binding.Request) { r.FSGroup = &group }},
		{"with another service account", func(_ *env, r *binding.Request) { r.Pod.ServiceAccount = "other" }},
		{"with nil attributes' kin", func(_ *env, _ *binding.Request) {}},
		{"while the plugin stops", func(e *env, _ *binding.Request) { e.p.StopWaiting() }},
		{"while its mount can't be examined", func(e *env, _ *binding.Request) { e.mounts.failAt("Check", errFault) }},
		{"while its target is outside", func(e *env, _ *binding.Request) { e.mounts.failAt("Check", mount.ErrOutside) }},
		{"that a newer plugin refuses, and an older one accepted", func(e *env, r *binding.Request) {
			r.Attributes = map[string]string{"configMap": "app", "noSuchThing": "1"}
			e.lookup("v1").wanted.request.Attributes = r.Attributes
		}},
		{"that no longer tells the pod", func(_ *env, r *binding.Request) {
			r.Pod, r.PodErr = volume.Pod{}, errors.New("podInfoOnMount is off")
		}},
	} {
		inBubbleOf(t, test.name, func(e *env) {
			r := e.publishApp()
			pod := r.Pod
			test.change(e, &r)
			e.publish(r)
			e.updateApp(r, "a", "2")
			if r.PodErr == nil {
				pod = r.Pod
			}
			if got := e.lookup("v1").wanted.request; got.Pod != pod || got.PodErr != nil {
				e.Errorf("it goes on for %v, %v, want %v", got.Pod, got.PodErr, pod)
			}
		})
	}
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
