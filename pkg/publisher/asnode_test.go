package publisher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

func TestAsNode(t *testing.T) { each(t, asNode, asNodeTests) }

var asNodeTests = map[string]func(e *env){
	// A refusal of the node may pass: it is not reported until it counts, a publish waits for its end and fails with it, and it never
	// removes a file.
	"refusals of the node pass": func(e *env) {
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
	},
	// An object that the pod's spec does not name is never requested, neither for a new volume nor for one from before a restart, whose
	// files stay.
	"unnamed objects": func(e *env) {
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
		wantIs(e, "%v registrations were made", e.objects.registrationsMade, made)

		e.pods.name()
		e.restart()
		e.objects.put(configMap("app"), "a", "2")
		after(3 * testResync)
		e.wantFiles(live, "a", "1")
		e.wantEvents("VolumeUpdateFailed")
		wantIs(e, "%v registrations were made after the restart", e.objects.registrationsMade, made)
		e.end(live)
	},
	"after a restart the pods of many volumes are refused for long: few requests are sent, and the volumes are current soon after": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		all := e.publishMany(50)
		e.pods.set(volume.Env{}, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errFault))
		e.restart()
		e.pods.takeReads()
		after(refusedTime)
		e.wantEvents()
		after(10 * time.Minute)
		told := map[string]bool{}
		e.events.locked(func() {
			for _, text := range e.events.told {
				told[strings.Fields(text)[0]] = true
			}
		})
		wantIs(e, "%v pods were told", len(told), len(all))
		e.wantEvents(slices.Repeat([]string{": RefForbidden: it has not been updated since"}, len(all))...)
		e.wantBetween("%d reads in ten minutes", len(strings.Fields(e.pods.takeReads())), 10, 50*30)
		e.objects.put(configMap("app"), "a", "2")
		e.pods.set(volume.Env{}, nil)
		e.wait(2 * time.Minute)
		e.wantFilesOf(all, "a", "2")
	},
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
