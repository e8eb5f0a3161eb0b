package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// asNode is like inBubble, with a Publisher that reads with its node's rights, and pods whose specs name the ConfigMap "app".
func asNode(t *testing.T, test func(e *env)) {
	t.Helper()
	inStoppedBubble(t, func(o *Options) { o.NodeRights = true }, func(e *env) {
		e.pods.name(configMap("app"))
		e.run()
		test(e)
	})
}

// unrelated is the answer of a node authorizer.
func unrelated(ref volume.Ref) error {
	return apierrors.NewForbidden(resourceOf(ref), ref.Name, errors.New("no relationship found"))
}

// A refusal of the node may pass: it is not reported until it counts, a publish waits for its end and fails with it, and it never removes a
// file.
func TestRefusalsOfTheNodePass(t *testing.T) {
	asNode(t, func(e *env) {
		app := configMap("app")
		e.objects.put(app, "a", "1")
		live := e.publishNew("v1")
		unknown := fmt.Errorf("%w: %w", manager.ErrNotSynced, unrelated(app))
		e.objects.failWith(app, unknown)
		e.restart()
		ctx, cancel := context.WithTimeout(e.ctx, time.Second)
		defer cancel()
		given := e.request("v5")
		e.pods.add(given)
		e.wantReason(e.p.Publish(ctx, given), failure.ReasonUnavailable, "") // the caller gives up, and the refusal may pass
		e.settle()
		e.wantEvents()
		first, second := e.publishing(e.request("v2")), e.publishing(e.request("v3"))
		after(testWait - time.Second)
		e.wantWaiting(first)
		e.wantProblem(live, "")
		e.wantEvents()
		after(time.Second)
		e.wantReason(<-first, failure.ReasonForbidden, unknown.Error())
		e.wantReason(<-second, failure.ReasonForbidden, unknown.Error())
		e.settle()
		e.wantEvents("RefForbidden", "RefForbidden")

		e.objects.deny(app, unknown)
		e.settle()
		e.wantEvents("pod-v1: RefForbidden")
		third := e.publishing(e.request("v4"))
		e.settle()
		e.wantEvents("pod-v4: RefForbidden")
		e.wantProblem(live, "no relationship found")
		e.wantFiles(live, "a", "1")
		e.wantWaiting(third) // although it counts now

		e.objects.set(app, func() { clear(e.objects.failures); clear(e.objects.denials) })
		e.objects.put(app, "a", "2")
		e.wantDone(third)
		e.settle()
		e.wantProblem(live, "")
		e.wantFiles(live, "a", "2")
	})
}

// An object that the pod's spec does not name is never requested, neither for a new volume nor for one from before a restart, whose files
// stay.
func TestUnnamedObjects(t *testing.T) {
	asNode(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "password", canary)
		live := e.publishNew("v1")
		made := e.objects.registrationsMade
		const unnamed = `%s: Forbidden: the pod's spec does not name %s itself, and this node's plugin runs with --identity=node: add a volume of the pod that names it, and show that by a volume source`
		for attributes, want := range map[[2]string][]string{
			{"sources", "[{configMap: {name: app}}, {secret: {name: db, canary: true}}]"}: {
				strings.Replace(fmt.Sprintf(unnamed, "sources[1].secret", secret("db")), "add a volume of the pod that names it, and show that by a volume source", "for a canary add a volume of the pod that names it and that nothing mounts or shows", 1),
			},
			{"secret", "db"}: {fmt.Sprintf(unnamed, "secret", secret("db"))},
			{"sources", "[{secret: {name: db}}, {configMap: {name: app}}, {env: {path: .env, envFrom: [{configMapRef: {name: other}}]}}]"}: {
				fmt.Sprintf(unnamed, "sources[0].secret", secret("db")), fmt.Sprintf(unnamed, "sources[2].env.envFrom[0].configMapRef", configMap("other")),
			},
		} {
			err := e.p.Publish(e.ctx, e.request("v2", attributes[:]...))
			text := strings.Join(want, ", ")
			if len(want) > 1 {
				text = "[" + text + "]"
			}
			e.wantReason(err, failure.ReasonInvalid, text)
		}
		if got := e.objects.registrationsMade; got != made {
			t.Errorf("%d registrations were made", got-made)
		}

		e.pods.name()
		e.restart()
		e.objects.put(configMap("app"), "a", "2")
		after(3 * testResync)
		e.wantFiles(live, "a", "1")
		e.wantEvents("VolumeUpdateFailed")
		if got := e.objects.registrationsMade; got != made {
			t.Errorf("%d registrations were made after the restart", got-made)
		}
		e.end(live)
	})
}

// A mounted volume may be one that this identity would not publish. A publish, as after a restart of the kubelet, leaves it as it is,
// because a failure would harm the running pod.
func TestMountedButNotForTheNode(t *testing.T) {
	static := fmt.Errorf("%w: %w", pod.ErrStatic, errNoPod)
	for want, test := range map[string]struct {
		volume []string
		change func(e *env)
	}{
		"VolumeUpdateFailed: configMap: Forbidden: the pod's spec does not name": {[]string{"configMap", "other"}, func(*env) {}},
		"VolumeUpdateFailed: with --identity=node a volume shows only":           {[]string{"configMap", "app"}, func(e *env) { e.pods.set(volume.Env{}, static) }},
	} {
		for _, read := range []bool{false, true} {
			asNode(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				e.objects.put(configMap("other"), "a", "1")
				e.opts.NodeRights = false
				e.restart()
				r := e.publishNew("v1", test.volume...)
				test.change(e)
				e.opts.NodeRights = true
				if read {
					e.restart()
				} else {
					e.restartUnread()
				}
				e.objects.put(configMap("app"), "a", "2")
				e.objects.put(configMap("other"), "a", "2")
				for range 3 {
					e.publish(r)
					after(testResync)
				}
				e.wantEvents(want) // at the start, or by the first publish
				e.wantFiles(r, "a", "1")
				e.end(r)

				// A new volume is refused.
				e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonInvalid, "")
			})
		}
	}
}

// After a restart the pods of many volumes are refused for a long time. Few requests are sent, and the volumes are current soon after.
func TestPodsRefusedAfterARestart(t *testing.T) {
	asNode(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		var all []binding.Request
		for i := range 50 {
			all = append(all, e.request(fmt.Sprint("v", i)))
			e.publish(all[i])
		}
		e.pods.set(volume.Env{}, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errFault))
		e.restart()
		e.pods.takeReads()
		after(refusedTime)
		e.wantEvents()
		after(10 * time.Minute)
		var told []string
		for i := range all {
			told = append(told, fmt.Sprintf("shop/pod-v%d: RefForbidden: it has not been updated since", i))
		}
		slices.Sort(told)
		e.events.mu.Lock()
		slices.Sort(e.events.told)
		e.events.mu.Unlock()
		e.wantEvents(told...)
		e.wantBetween("%d reads in ten minutes", len(strings.Fields(e.pods.takeReads())), 10, 50*30)
		e.objects.put(configMap("app"), "a", "2")
		e.pods.set(volume.Env{}, nil)
		e.wait(2 * time.Minute)
		e.wantFilesOf(all, "a", "2")
	})
}

// A new volume cannot show an object that may not be read any more, even if its state is known: the API server tells nothing about it.
func TestPublishOfWhatIsDenied(t *testing.T) {
	for name, denied := range map[string]error{
		"forbidden":    unrelated(configMap("app")),
		"unauthorized": apierrors.NewUnauthorized("the token is no good"),
	} {
		inBubbleOf(t, name, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			live, next := e.request("v1"), e.request("v2")
			e.publish(live)
			e.objects.deny(configMap("app"), denied)
			e.settle()
			e.wantEvents("pod-v1: RefForbidden")
			e.wantReason(e.p.Publish(e.ctx, next), failure.ReasonForbidden, denied.Error())
			e.wantEvents("pod-v2: RefForbidden")
			e.publish(live) // again, as after a restart of the kubelet
			e.wantFiles(live, "a", "1")
			e.objects.deny(configMap("app"), nil)
			e.publish(next)
			e.wantFiles(next, "a", "1")
		})
	}
}
