package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

func failing(_ *fakeRollout, _ string, p *fakePod) {
	if p.data["app"] == "new" && time.Since(p.took) > time.Second {
		p.ready, p.restarts = false, 1+int32(time.Since(p.took).Seconds())/20
	}
}

func (f *fakeRollout) summary() string {
	return fmt.Sprintf("shares set: %q; %d of %d pods have the change", f.sets, len(f.with("app", "new")), len(f.pods))
}

// TestRolloutJudges: the command does not take the absence of bad signs for health, and one sign for a fault. Which signs these are is tested in
// pkg/health.
func TestRolloutJudges(t *testing.T) {
	testRuns(t, func() *fakeRollout { return newFakeRollout(20, "app") }, map[string]rolloutRun{
		"pods that are replaced as they fail": {
			before: are(func(f *fakeRollout, name string, p *fakePod) {
				if p.data["app"] == "new" && time.Since(p.took) > 5*time.Second {
					delete(f.pods, name)
					f.pods[name+"-"] = newest(p.version["app"], false)
				}
			}),
			status: unknown, sets: "10%", fails: "replaced again and again",
		},
		"a drain": {
			before: afterwards(30*time.Second, func(f *fakeRollout) {
				for _, name := range f.with("app", "new") {
					delete(f.pods, name)
					f.pods["drained-"+name] = newest("12", true)
				}
			}),
			prints: "more than half of the pods that have the change are replaced, drained, or on nodes that are not ready: watching anew",
		},
		"unhealthy pods that are tolerated": {
			before: are(func(_ *fakeRollout, name string, p *fakePod) { p.ready = name != "pod-3" && name != "pod-7" }), flags: "--max-unhealthy=2",
		},
		"more unhealthy pods than are tolerated": {before: are(failing), flags: "--steps=50%,100% --max-unhealthy=10%", status: no, sets: "50%"},
		"pods that fail between two steps": {
			before: func(_ *testing.T, f *fakeRollout) {
				var first time.Time
				f.check = func([]string) error {
					if first.IsZero() {
						first = time.Now()
					}
					if time.Since(first) >= time.Minute-healthPause { // the step's last look was before this
						f.sick = failing
					}
					return nil
				}
			},
			flags: "--check=x", status: no, sets: "10%", fails: "stopped: unhealthy pods that have the change",
		},
		"an object that was never held": {
			before: func(_ *testing.T, f *fakeRollout) { f.change("app", "new", "") },
			status: none, sets: "-", fails: "nothing to do",
			after: func(t *testing.T, f *fakeRollout, err error) {
				if time.Since(f.began) > time.Second || !strings.Contains(message(err), "kubectl refvol rollout configmap/app -n shop --to 0%") {
					t.Error(err, f.summary())
				}
			},
		},
	})
}

// newFakeCanary returns pods whose volumes name the canary app, which has no share yet.
func newFakeCanary(pods int) *fakeRollout {
	f := newFakeRollout(pods, "app")
	f.isCanary = true
	f.objects["app"].state.isCanary = true
	f.change("app", "new", "0%")
	for _, p := range f.pods {
		p.data["app"] = ""
	}
	return f
}

// TestRolloutOfACanary: the command drives a canary object by its own annotation, and takes it back by itself.
func TestRolloutOfACanary(t *testing.T) {
	with := func(change func(f *fakeRollout)) func(*testing.T, *fakeRollout) {
		return func(_ *testing.T, f *fakeRollout) { change(f) }
	}
	failingWith := func(change func(f *fakeRollout)) func(*testing.T, *fakeRollout) {
		return with(func(f *fakeRollout) {
			f.sick, f.stable = failing, &rolloutState{Version: status.Version{UID: "s", ResourceVersion: "5"}}
			change(f)
		})
	}
	const all, back = "10% 50% 100%", "10% 0%"
	testRuns(t, func() *fakeRollout { return newFakeCanary(20) }, map[string]rolloutRun{
		"a good one": {
			sets: all, prints: "done, all pods show the canary. To promote it, write its values to the stable object",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				const events = "[app RolloutStarted: refvol-rollout gives it to more and more pods; its share is 0% app RolloutDone: all pods have the change, and are well]"
				if got := fmt.Sprint(f.events); got != events || len(f.with("app", "new")) != 20 {
					t.Error(got, f.summary())
				}
			},
		},
		"a bad one is taken back": {
			before: are(failing), status: no, sets: back, fails: "configmap/app: stopped, and taken back to 0%: unhealthy pods that have the change: ",
			prints: "whether configmap/stable in namespace shop has changed since the command began isn't known", // it can't be read
			after: func(t *testing.T, f *fakeRollout, _ error) {
				if len(f.events) != 2 || !strings.Contains(f.events[1], "RolloutReverted: unhealthy pods that have the change: ") {
					t.Error(f.events)
				}
			},
		},
		"the stable object changes meanwhile": {
			before: failingWith(func(f *fakeRollout) { f.later(2*time.Second, func() { f.stable.ResourceVersion = "6" }) }),
			status: no, prints: "configmap/stable in namespace shop has changed since the command began: the share does not take that back",
		},
		"the stable object stays": {
			before: failingWith(func(*fakeRollout) {}), status: no,
			after: func(t *testing.T, f *fakeRollout, _ error) {
				if strings.Contains(f.printed(), "configmap/stable") {
					t.Error(f.out)
				}
			},
		},
		"a bad one is kept": {
			before: are(failing), flags: "--on-failure=keep",
			status: no, sets: "10%", fails: "To take the canary back, run: kubectl refvol rollout configmap/app -n shop --to 0%",
		},
		"taking it back fails": {
			before: failingWith(func(f *fakeRollout) { f.failSets = 2 }),
			status: unknown, fails: "could not be taken back: run: kubectl refvol rollout configmap/app -n shop --to 0%",
		},
		"deleted meanwhile": {before: afterwards(30*time.Second, func(f *fakeRollout) { delete(f.objects, "app") }), status: no},
		"both annotations":  {before: with(func(f *fakeRollout) { f.objects["app"].state.isHeld = true }), status: no, fails: "has both annotations"},
		"immutable":         {before: with(func(f *fakeRollout) { f.isImmutable = true }), status: no, sets: "-", fails: "is immutable"},
		"without an annotation": {
			before: with(func(f *fakeRollout) {
				f.objects["app"].state.isCanary = false
				f.change("app", "new", "")
			}),
			sets: all,
		},
		"paused by somebody": {
			before: afterwards(30*time.Second, func(f *fakeRollout) {
				f.objects["app"].state.isPaused = true
				f.change("app", "new", "10%")
			}),
			status: no, sets: "10%", fails: "paused by its annotation refvol.dev/rollout-paused: the share stays",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				if took := time.Since(f.began); took > 36*time.Second {
					t.Errorf("the command went on for %s", took-30*time.Second)
				}
			},
		},
		"a check that fails": {
			before: with(func(f *fakeRollout) {
				f.check = func(env []string) error {
					if fmt.Sprint(f.sets) != "[10% 50%]" {
						return nil
					}
					f.out = append(f.out, fmt.Sprint("env: ", env))
					return errFault
				}
			}),
			flags: "--check=x", status: no, sets: "10% 50% 0%", prints: "pod (--check) the command fails: fault",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				if want := "env: [REFVOL_SHARE=50% REFVOL_STEP=2 REFVOL_OBJECTS=configmap/app REFVOL_NAMESPACE=shop]"; !slices.Contains(f.out, want) {
					t.Errorf("the command did not get %s", want)
				}
			},
		},
		"a check that fails once": {
			before: with(func(f *fakeRollout) {
				n := 0
				f.check = func([]string) error {
					if n++; n%4 == 0 {
						return errFault
					}
					return nil
				}
			}),
			flags: "--check=x",
		},
	})
}

// TestCanaryUses: what a pod's volumes name as canaries, and beside them, in files and in env files.
func TestCanaryUses(t *testing.T) {
	pod := func(driver, sources string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{}, {VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: driver, VolumeAttributes: map[string]string{"sources": sources}},
		}}}}}
	}
	got := canaryUses([]corev1.Pod{
		pod(driverName, "[{configMap: {name: app}}, {secret: {name: new, canary: true}}]"),
		pod(driverName, "[{env: {path: .env, envFrom: [{configMapRef: {name: vars}}, {configMapRef: {name: more, canary: true}}]}}]"),
		pod("another", "[{configMap: {name: other, canary: true}}]"),
		pod(driverName, "[{configMap: {name: bad}, canary: true}]"),
	}, driverName)
	want := map[fleet.Object][]fleet.Object{
		{Kind: "Secret", Namespace: "shop", Name: "new"}:     {{Kind: "ConfigMap", Namespace: "shop", Name: "app"}},
		{Kind: "ConfigMap", Namespace: "shop", Name: "more"}: {{Kind: "ConfigMap", Namespace: "shop", Name: "vars"}},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestAnotherObjectOfTheName: pause, resume and abort change only the object that they have looked at. One that was created meanwhile stays as it is.
func TestAnotherObjectOfTheName(t *testing.T) {
	of := func(uid string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "app", UID: types.UID(uid)},
		}
	}
	client := fakeObjects(t)
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, of("first"), nil })
	client.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, _ := action.(clienttesting.PatchAction)
		asked := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(patch.GetPatch(), asked); err != nil {
			return true, nil, err
		}
		if asked.UID != "" && asked.UID != "second" { // as an API server does
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "app", errors.New("precondition failed"))
		}
		return true, of("second"), nil
	})
	c := &cluster{metadata: client}
	_, err := c.annotate(t.Context(), fleet.Object{Kind: "ConfigMap", Namespace: "shop", Name: "app"}, func(*rolloutState) (map[string]*string, string) {
		return map[string]*string{pausedAnnotation: new("true")}, "paused"
	})
	if err == nil || !strings.Contains(err.Error(), "was replaced meanwhile") || isAnswer(err) {
		t.Errorf("got %v, want an error after which it is tried again", err)
	}
}

// TestRunShell: the command gets the variables, and its exit status counts.
func TestRunShell(t *testing.T) {
	var out strings.Builder
	if err := runShell(t.Context(), `echo "$REFVOL_SHARE"; exit 3`, []string{"REFVOL_SHARE=10%"}, &out); err == nil || !strings.Contains(err.Error(), "exit status 3") || out.String() != "10%\n" {
		t.Error(err, out.String())
	}
	must.Do(t, runShell(t.Context(), "true", nil, &out))
}

// TestRolloutStatus: pods that show the version, pods that don't, and those that are not ready, since the first of them.
func TestRolloutStatus(t *testing.T) {
	pod := func(name string, ready corev1.ConditionStatus, ago time.Duration) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(time.Now().Add(-ago))},
		}}}
	}
	pods := map[string]*corev1.Pod{"a": pod("a", corev1.ConditionTrue, time.Hour), "b": pod("b", corev1.ConditionFalse, time.Minute), "c": pod("c", corev1.ConditionFalse, 5*time.Minute), "d": pod("d", corev1.ConditionFalse, time.Hour)}
	taker := func(uid string, current bool) fleet.Taker {
		return fleet.Taker{Pod: status.Pod{UID: uid}, Current: current}
	}
	item := rolloutItem{Object: fleet.Object{Kind: "Secret", Namespace: "shop", Name: "db"}, Canary: true, Share: "10%", NotReady: []string{}}
	item.count([]fleet.Taker{taker("a", true), taker("c", true), taker("b", true), taker("d", false), taker("gone", true)}, pods)
	if item.Takers != 4 || item.Others != 1 || strings.Join(item.NotReady, " ") != "b c" || time.Since(*item.NotReadySince).Round(time.Minute) != 5*time.Minute {
		t.Errorf("%+v", item)
	}
	var text bytes.Buffer
	must.Do(t, (&rolloutList{Items: []rolloutItem{item, {Object: fleet.Object{Kind: "ConfigMap", Namespace: "shop", Name: "app"}, Paused: true}}}).writeText(&text, "", true))
	const want = `NAMESPACE  OBJECT         KIND          SHARE  PAUSED  TAKERS  OTHERS  NOT-READY  SINCE
shop       secret/db      canary        10%    no      4       1       2          5m
shop       configmap/app  held version  -      yes     0       0       0          -
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	for namespace, want := range map[string]string{
		"":     "No object has the annotation refvol.dev/canary or refvol.dev/rollout.\n",
		"shop": "No object of namespace shop has the annotation refvol.dev/canary or refvol.dev/rollout. -A lists all namespaces.\n",
	} {
		text.Reset()
		if err := (&rolloutList{}).writeText(&text, namespace, true); err != nil || text.String() != want {
			t.Errorf("got %q, want %q: %v", text.String(), want, err)
		}
	}
}
