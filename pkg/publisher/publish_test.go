package publisher

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

func TestPublishReturnsAtTheChangeThatItWaitsFor(t *testing.T) {
	items := []string{"configMap", "app", "items", "[{key: a, path: a}]"}
	for _, test := range []struct {
		name       string
		attributes []string
		before     func(o *fakeObjects)
		change     func(o *fakeObjects)
	}{{
		name:   "object missing",
		before: func(*fakeObjects) {},
		change: func(o *fakeObjects) { o.put(configMap("app"), "a", "1") },
	}, {
		name:       "key missing",
		attributes: items,
		before:     func(o *fakeObjects) { o.put(configMap("app"), "b", "2") },
		change:     func(o *fakeObjects) { o.put(configMap("app"), "a", "1") },
	}, {
		name: "not synced",
		before: func(o *fakeObjects) {
			o.put(configMap("app"), "a", "1")
			o.failWith(configMap("app"), manager.ErrNotSynced)
		},
		change: func(o *fakeObjects) { o.failWith(configMap("app"), nil) },
	}} {
		inBubbleOf(t, test.name, func(e *env) {
			test.before(e.objects)
			r := e.request("v1", test.attributes...)
			begin := time.Now()
			result := e.waiting(r)
			if e.mounts.count("Create") > 0 {
				e.Error("a file system was made before there was anything to write")
			}
			after(30 * time.Second)
			e.wantWaiting(result)
			test.change(e.objects)
			e.wantDone(result)
			if took := time.Since(begin); took != 30*time.Second {
				e.Errorf("returned after %v, want at the change, 30s", took)
			}
			e.wantFiles(r, "a", "1")
			e.end(r)
		})
	}
}

func TestPublishListsAllThatIsMissingWhenTheWaitEnds(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("tls"), "tls.crt", "x")
		r := e.request("v1", "sources", `
- configMap: {name: app}
- secret: {name: db}
- secret: {name: tls, items: [{key: tls.key, path: key}]}
- secret: {name: extra, optional: true}`)
		begin := time.Now()
		err := e.p.Publish(e.ctx, r)
		if took := time.Since(begin); took != testWait {
			t.Errorf("returned after %v, want %v", took, testWait)
		}
		e.wantReason(err, failure.ReasonNotFound, `sources[0].configMap: ConfigMap "shop/app" not found; `+
			`sources[1].secret: Secret "shop/db" not found; `+
			`sources[2].secret: Secret "shop/tls": references non-existent secret key: tls.key (it has tls.crt)`)
		e.wantNothing()
	})
}

func TestPublishDoesNotWaitWhereThatIsOfNoUse(t *testing.T) {
	forbidden := func(name string) error {
		cause := apierrors.NewForbidden(resourceOf(configMap(name)), name, errors.New("no RBAC policy matched"))
		return fmt.Errorf("%s: %w: %w", configMap(name), manager.ErrNotSynced, cause)
	}
	overloaded := fmt.Errorf("%w: %w", manager.ErrNotSynced, apierrors.NewTooManyRequests("slow down", 1))
	two := []string{"sources", "[{configMap: {name: first}}, {configMap: {name: app}}]"}
	for _, test := range []struct {
		name    string
		request func(e *env) binding.Request
		prepare func(e *env)
		reason  failure.Reason
		text    string
	}{{
		name:    "forbidden",
		prepare: func(e *env) { e.objects.failWith(configMap("app"), forbidden("app")) },
		reason:  failure.ReasonForbidden,
		text: `ConfigMap "shop/app": not synced with the API server yet: ` +
			`configmaps "app" is forbidden: no RBAC policy matched`,
	}, {
		name:    "forbidden behind another failure",
		request: func(e *env) binding.Request { return e.request("v1", two...) },
		prepare: func(e *env) {
			e.objects.failWith(configMap("first"), overloaded)
			e.objects.failWith(configMap("app"), forbidden("app"))
		},
		reason: failure.ReasonForbidden,
	}, {
		name:    "forbidden although optional",
		request: func(e *env) binding.Request { return e.request("v1", "configMap", "app", "optional", "true") },
		prepare: func(e *env) { e.objects.failWith(configMap("app"), forbidden("app")) },
		reason:  failure.ReasonForbidden,
	}, {
		name:    "a file where a directory is needed",
		request: func(e *env) binding.Request { return e.request("v1", "sources", collidingSources) },
		prepare: func(e *env) {
			e.objects.put(configMap("first"), "conf", "1")
			e.objects.put(configMap("app"), "a", "2")
		},
		reason: failure.ReasonInvalid,
		text: `path "conf/a" can't be shown: "conf" is a file of the same volume; ` +
			`map one of the two keys to another path`,
	}, {
		name:    "not registered",
		prepare: func(e *env) { e.objects.failWith(configMap("app"), manager.ErrNotRegistered) },
		reason:  failure.ReasonUnavailable,
	}, {
		name:    "not read-only",
		request: func(e *env) binding.Request { r := e.request("v1"); r.ReadOnly = false; return r },
		reason:  failure.ReasonInvalid,
		text:    "readOnly: Required value: must be true (set csi.readOnly: true in the pod's volume)",
	}, {
		name:    "bad attributes",
		request: func(e *env) binding.Request { return e.request("v1", "configMap", "app", "defaultMode", "0999") },
		reason:  failure.ReasonInvalid,
		text:    `defaultMode: Invalid value: "0999": must be an octal number with a leading zero, from "0000" to "0777"`,
	}, {
		name: "nobody knows the pod",
		request: func(e *env) binding.Request {
			r := e.request("v1")
			r.Pod, r.PodErr = volume.Pod{}, errors.New("volume_context: Required value")
			return r
		},
		reason: failure.ReasonInvalid,
		text:   "volume_context: Required value",
	}} {
		inBubbleOf(t, test.name, func(e *env) {
			if test.prepare != nil {
				test.prepare(e)
			}
			r := e.request("v1")
			if test.request != nil {
				r = test.request(e)
			}
			begin := time.Now()
			e.wantReason(e.p.Publish(e.ctx, r), test.reason, test.text)
			if took := time.Since(begin); took != 0 {
				e.Errorf("waited %v", took)
			}
			e.wantNothing()
		})
	}
}

const collidingSources = "[{configMap: {name: first}}, {configMap: {name: app, items: [{key: a, path: conf/a}]}}]"

func TestStopWaiting(t *testing.T) {
	inBubble(t, func(e *env) {
		waiting := e.waiting(e.request("v1"))
		begin := time.Now()
		e.p.StopWaiting()
		e.p.StopWaiting()
		e.wantReason(<-waiting, failure.ReasonUnavailable, `volume v1: the plugin is stopping: configMap: ConfigMap "shop/app" not found`)
		e.wantReason(e.p.Publish(e.ctx, e.request("v2")), failure.ReasonUnavailable, "")
		e.wantNothing()

		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v3")) // a volume that needs no wait still works
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %v", took)
		}
	})
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
