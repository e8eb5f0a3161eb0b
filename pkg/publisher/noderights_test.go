package publisher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// asNode is inBubble with a Publisher that reads with the rights of its node, and pods whose
// specs name the ConfigMap "app".
func asNode(t *testing.T, test func(e *env)) {
	t.Helper()
	inStoppedBubble(t, func(o *Options) { o.NodeRights = true }, func(e *env) {
		e.pods.name(configMap("app"))
		e.run()
		test(e)
	})
}

// unrelated is what a node authorizer says.
func unrelated(ref volume.Ref) error {
	return apierrors.NewForbidden(resourceOf(ref), ref.Name, errors.New("no relationship found"))
}

// A refusal of the node may pass: nothing is said of it until it counts, and a publish waits for
// its end, and fails with it. It never takes a file.
func TestRefusalsOfTheNodePass(t *testing.T) {
	asNode(t, func(e *env) {
		app := configMap("app")
		e.objects.put(app, "a", "1")
		live := e.request("v1")
		e.publish(live)
		unknown := fmt.Errorf("%w: %w", manager.ErrNotSynced, unrelated(app))
		e.objects.failWith(app, unknown)
		e.restart()
		first, second := e.publishing(e.request("v2")), e.publishing(e.request("v3"))
		after(testWait - time.Second)
		e.wantWaiting(first)
		e.wantProblem(live, "")
		e.wantEvents()
		after(time.Second)
		e.wantReason(<-first, ReasonForbidden, unknown.Error())
		e.wantReason(<-second, ReasonForbidden, unknown.Error())
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
		e.wantWaiting(third) // though it counts now

		e.objects.set(app, func() { clear(e.objects.failures); clear(e.objects.denials) })
		e.objects.put(app, "a", "2")
		if err := <-third; err != nil {
			t.Error(err)
		}
		e.settle()
		e.wantProblem(live, "")
		e.wantFiles(live, "a", "2")
	})
}

// What a live volume shows may be known and yet be denied. A new volume waits then as well.
func TestPublishOfWhatIsDeniedToTheNode(t *testing.T) {
	asNode(t, func(e *env) {
		app := configMap("app")
		e.objects.put(app, "a", "1")
		e.publish(e.request("v1"))
		e.objects.deny(app, unrelated(app))
		e.settle()
		e.wantEvents("pod-v1: RefForbidden")
		answer := e.publishing(e.request("v2"))
		after(testWait / 2)
		e.wantWaiting(answer)
		e.objects.deny(app, nil)
		if err := <-answer; err != nil {
			t.Error(err)
		}
		last := e.publishing(e.request("v3"))
		e.objects.deny(app, unrelated(app))
		synctest.Wait()
		if err := <-last; err != nil { // it had its object before
			e.wantReason(err, ReasonForbidden, unrelated(app).Error())
		}
	})
}

// Nothing is asked of an object that the pod's spec does not name, neither for a new volume nor
// for one from before a restart, whose files stay.
func TestUnnamedObjects(t *testing.T) {
	asNode(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "password", canary)
		live := e.request("v1")
		e.publish(live)
		made := e.objects.registrationsMade
		const unnamed = `%s: Forbidden: the pod's spec does not name %s itself, and this node's plugin runs with --identity=node: add a volume of the pod that names it, and show that by a volume source`
		for attributes, want := range map[[2]string][]string{
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
			e.wantReason(err, ReasonInvalid, text)
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
		e.unpublish(live)
		e.wantNothing()
	})
}

// What is mounted already may be what this identity would not publish: a publish, as after a
// restart of the kubelet, leaves it as it is. A failure would harm the running pod.
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
				r := e.request("v1", test.volume...)
				e.publish(r)
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
				e.wantEvents(want) // at the start or by the first publish
				e.wantFiles(r, "a", "1")
				e.unpublish(r)
				e.wantNothing()

				// A new volume is refused.
				e.wantReason(e.p.Publish(e.ctx, r), ReasonInvalid, "")
			})
		}
	}
}

// Each publish reads its pod once. One that the authorizer does not know yet is read again, and
// one that is static is refused.
func TestPodsReadAsTheNode(t *testing.T) {
	asNode(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		if got := e.pods.takeReads(); got != r.Pod.Name {
			t.Errorf("read %q", got)
		}
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("no relationship found"))
		e.pods.set(volume.Env{}, forbidden)
		begin := time.Now()
		const prefix = "with --identity=node a volume shows only what its pod's spec names: "
		e.wantReason(e.p.Publish(e.ctx, e.request("v2")), ReasonForbidden, prefix+forbidden.Error())
		if waited := time.Since(begin); waited != testWait {
			t.Errorf("it failed after %s, want %s", waited, testWait)
		}
		if n := len(strings.Fields(e.pods.takeReads())); n < 10 || n > 40 {
			t.Errorf("%d reads in %s", n, testWait)
		}
		e.wantEvents("RefForbidden")
		answer := e.publishing(e.request("v3"))
		after(100 * time.Millisecond)
		e.pods.set(volume.Env{}, nil)
		if err := <-answer; err != nil {
			t.Error(err)
		}
		static := fmt.Errorf("%w: %w", pod.ErrStatic, errNoPod)
		e.pods.set(volume.Env{}, static)
		e.wantReason(e.p.Publish(e.ctx, e.request("v5")), ReasonInvalid, prefix+static.Error())
		e.pods.set(volume.Env{}, nil)
		mirror := e.request("v6")
		e.pods.add(mirror)
		e.pods.change(mirror, func(says *pod.Spec) { says.Mirror = true })
		e.wantReason(e.p.Publish(e.ctx, mirror), ReasonInvalid, prefix+"read pod "+mirror.Pod.String()+": "+pod.ErrStatic.Error())
		e.pods.set(volume.Env{}, forbidden)
		answer = e.publishing(e.request("v4"))
		after(time.Second)
		e.p.StopWaiting()
		e.wantReason(<-answer, ReasonUnavailable, "volume v4: "+errStopping.Error()+": "+prefix+forbidden.Error())
	})
}

// After a restart a static pod's mirror is not there. It is asked for ever more rarely.
func TestAPodThatStaysRefusedAfterARestart(t *testing.T) {
	asNode(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		static := e.request("static")
		e.publish(static)
		e.pods.refuse(static)
		e.restart()
		after(2 * time.Minute)
		e.wantEvents("pod-static: RefForbidden")
		e.pods.takeReads()
		after(time.Hour)
		if n := len(strings.Fields(e.pods.takeReads())); n < 60 || n > 120 {
			t.Errorf("%d reads in an hour", n)
		}
		e.objects.put(configMap("app"), "a", "2")
		e.pods.allow(static)
		after(2 * time.Minute)
		e.settle()
		e.wantFiles(static, "a", "2")
	})
}

// Many publishes wait while pods are refused, of several volumes each. Few requests are sent, one
// of a pod at a time, and all go on soon after. One more that is refused holds up no other.
func TestManyPublishesWhilePodsAreRefused(t *testing.T) {
	asNode(t, func(e *env) {
		const pods, volumes = 300, 2
		e.objects.put(configMap("app"), "a", "1")
		e.pods.set(volume.Env{}, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errFault))
		e.pods.slow = 20 * time.Millisecond
		var answers []<-chan error
		for i := range pods {
			r := e.request(fmt.Sprint("v", i))
			for j := range volumes {
				one := r
				one.VolumeID = fmt.Sprint(r.VolumeID, "-", j)
				one.Target = strings.Replace(r.Target, "/settings/", fmt.Sprint("/settings-", j, "/"), 1)
				e.makeTarget(one)
				answers = append(answers, e.publishing(one))
			}
		}
		after(time.Minute)
		if n := len(strings.Fields(e.pods.takeReads())); n < pods || n > 20*pods {
			t.Errorf("%d reads of %d pods in a minute", n, pods)
		}
		stays := e.request("stays")
		e.pods.refuse(stays)
		refused := e.publishing(stays)
		e.pods.set(volume.Env{}, nil)
		begin := time.Now()
		for _, answer := range answers {
			if err := <-answer; err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("they went on for %s", took)
		}
		if n := len(strings.Fields(e.pods.takeReads())); n > pods*volumes+60 {
			t.Errorf("%d reads of %d pods", n, pods)
		}
		e.publish(e.request("next"))
		e.wantReason(<-refused, ReasonForbidden, "")
	})
}

// After a restart the pods of many volumes are refused for long. Few requests are sent, and the
// volumes are current soon after.
func TestPodsRefusedAfterARestart(t *testing.T) {
	asNode(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		var all []Request
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
			told = append(told, fmt.Sprintf("shop/pod-v%d: RefForbidden: it is not updated since", i))
		}
		slices.Sort(told)
		e.events.mu.Lock()
		slices.Sort(e.events.told)
		e.events.mu.Unlock()
		e.wantEvents(told...)
		if n := len(strings.Fields(e.pods.takeReads())); n < 10 || n > 50*30 {
			t.Errorf("%d reads in ten minutes", n)
		}
		e.objects.put(configMap("app"), "a", "2")
		e.pods.set(volume.Env{}, nil)
		after(2 * time.Minute)
		e.settle()
		for _, r := range all {
			e.wantFiles(r, "a", "2")
		}
	})
}
