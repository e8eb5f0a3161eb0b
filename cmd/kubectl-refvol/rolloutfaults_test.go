package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// failing makes pods with the change restart again and again.
func failing(_ *fakeRollout, _ string, p *fakePod) {
	if p.data["app"] == "new" && time.Since(p.took) > time.Second {
		p.ready, p.restarts = false, 1+int32(time.Since(p.took).Seconds())/20
	}
}

func (f *fakeRollout) summary() string {
	return fmt.Sprintf("shares set: %q; %d of %d pods have the change", f.sets, len(f.with("app", "new")), len(f.pods))
}

// TestRolloutJudges: the command does not take the absence of bad signs for health, and one sign for a fault.
func TestRolloutJudges(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *fakeRollout){
		"pods that failed before the command began": func(t *testing.T, f *fakeRollout) {
			f.change("app", "new", "10%")
			f.sick = failing
			for range 3 {
				<-time.After(20 * time.Second)
				f.settle()
			}
			if err := f.roll(t.Context(), t); exitStatus(err) != no || fmt.Sprint(f.sets) != "[10%]" && len(f.sets) > 0 {
				t.Error(err, f.summary())
			}
		},
		"pods that are replaced as they fail": func(t *testing.T, f *fakeRollout) {
			n := 0
			f.sick = func(f *fakeRollout, name string, p *fakePod) {
				if p.data["app"] == "new" && time.Since(p.took) > 5*time.Second {
					delete(f.pods, name)
					n++
					f.pods[fmt.Sprint(name, "-", n)] = &fakePod{data: map[string]string{"app": "new"}, version: map[string]string{"app": p.version["app"]}, took: time.Now(), created: time.Now()}
				}
			}
			if err := f.roll(t.Context(), t); exitStatus(err) != no && exitStatus(err) != unknown || strings.Contains(fmt.Sprint(f.sets), "50%") {
				t.Error(err, f.summary())
			}
		},
		"new pods that are never ready": func(t *testing.T, f *fakeRollout) {
			f.later(20*time.Second, func() {
				for i := range 5 {
					f.pods[fmt.Sprint("late-", i)] = &fakePod{data: map[string]string{"app": "new"}, version: map[string]string{"app": "12"}, created: time.Now()}
				}
			})
			if err := f.roll(t.Context(), t, "--steps=10%,20%,30%,40%,50%,100%"); exitStatus(err) != no {
				t.Error(err, f.summary())
			}
			f.wantPrinted(t, "pod shop/late-0 was never ready")
		},
		"one pod that is not ready for a moment": func(t *testing.T, f *fakeRollout) {
			one := ""
			f.sick = func(f *fakeRollout, name string, p *fakePod) {
				if one == "" && p.data["app"] == "new" {
					one = name
				}
				if since := time.Since(p.took); name == one {
					p.ready = since < 20*time.Second || since > 24*time.Second
				}
			}
			if err := f.roll(t.Context(), t); err != nil {
				t.Error(err, f.summary())
			}
		},
		"a restart that is allowed, and a long --unready-for": func(t *testing.T, f *fakeRollout) {
			f.sick = func(_ *fakeRollout, _ string, p *fakePod) {
				if since := time.Since(p.took); p.data["app"] == "new" && since > time.Second {
					p.restarts, p.ready = 1, since > 20*time.Second
				}
			}
			if err := f.roll(t.Context(), t, "--allow-restarts=1", "--unready-for=30m"); err != nil {
				t.Error(err, f.summary())
			}
		},
		"a drain": func(t *testing.T, f *fakeRollout) {
			f.later(30*time.Second, func() {
				for i, name := range f.with("app", "new") {
					delete(f.pods, name)
					f.pods[fmt.Sprint("drained-", i)] = &fakePod{data: map[string]string{"app": "new"}, version: map[string]string{"app": "12"}, ready: true, took: time.Now(), created: time.Now()}
				}
			})
			if err := f.roll(t.Context(), t); err != nil {
				t.Error(err, f.summary())
			}
			f.wantPrinted(t, "more than half of the pods that have the change are replaced, drained, or on nodes that are not ready: watching anew")
		},
		"unhealthy pods that are tolerated": func(t *testing.T, f *fakeRollout) {
			f.sick = func(f *fakeRollout, name string, p *fakePod) { p.ready = name != "pod-3" && name != "pod-7" }
			if err := f.roll(t.Context(), t, "--max-unhealthy=2"); err != nil {
				t.Error(err, f.summary())
			}
		},
		"more unhealthy pods than are tolerated": func(t *testing.T, f *fakeRollout) {
			f.sick = failing
			if err := f.roll(t.Context(), t, "--steps=50%,100%", "--max-unhealthy=10%"); exitStatus(err) != no || fmt.Sprint(f.sets) != "[50%]" {
				t.Error(err, f.summary())
			}
		},
		"a request that fails once": func(t *testing.T, f *fakeRollout) {
			f.failSets = map[int]bool{2: false}
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 50% 100% 0%]" {
				t.Error(err, f.summary())
			}
		},
		"a request whose answer is lost": func(t *testing.T, f *fakeRollout) {
			f.failSets = map[int]bool{2: true, 4: true}
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 50% 100% 0%]" {
				t.Error(err, f.summary())
			}
		},
		"an object that was never held": func(t *testing.T, f *fakeRollout) {
			f.change("app", "new", "")
			began := time.Now()
			if err := f.roll(t.Context(), t); exitStatus(err) != none || len(f.sets) > 0 || time.Since(began) > time.Second ||
				!strings.Contains(err.Error(), "nothing to do") || !strings.Contains(err.Error(), "kubectl refvol rollout configmap/app -n shop --to 0%") {
				t.Error(err, f.summary())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newFakeRollout(20, "app")) })
		})
	}
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
	for name, test := range map[string]func(*testing.T, *fakeRollout){
		"a good one": func(t *testing.T, f *fakeRollout) {
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 50% 100%]" || len(f.with("app", "new")) != 20 {
				t.Error(err, f.summary())
			}
			f.wantPrinted(t, "done, all pods show the canary. To promote it, write its values to the stable object")
			if got := fmt.Sprint(f.events); got != "[app RolloutStarted: refvol-rollout gives it to more and more pods; its share is 0% app RolloutDone: all pods have the change, and are well]" {
				t.Error(got)
			}
		},
		"a bad one is taken back": func(t *testing.T, f *fakeRollout) {
			f.sick = failing
			err := f.roll(t.Context(), t)
			if exitStatus(err) != no || fmt.Sprint(f.sets) != "[10% 0%]" || !strings.HasPrefix(err.Error(), "configmap/app: stopped, and taken back to 0%: unhealthy pods that have the change: ") {
				t.Error(err, f.summary())
			}
			if len(f.events) != 2 || !strings.Contains(f.events[1], "RolloutReverted: unhealthy pods that have the change: ") {
				t.Error(f.events)
			}
		},
		"the stable object changes meanwhile": func(t *testing.T, f *fakeRollout) {
			f.sick, f.stable = failing, &rolloutState{Version: status.Version{UID: "s", ResourceVersion: "5"}}
			f.later(2*time.Second, func() { f.stable.ResourceVersion = "6" })
			if err := f.roll(t.Context(), t); exitStatus(err) != no {
				t.Error(err, f.summary())
			}
			f.wantPrinted(t, "configmap/stable in namespace shop has changed since the command began: the share does not take that back")
		},
		"the stable object stays": func(t *testing.T, f *fakeRollout) {
			f.sick, f.stable = failing, &rolloutState{Version: status.Version{UID: "s", ResourceVersion: "5"}}
			if err := f.roll(t.Context(), t); exitStatus(err) != no || strings.Contains(strings.Join(f.out, "\n"), "configmap/stable") {
				t.Error(err, f.out)
			}
		},
		"the stable object can't be read": func(t *testing.T, f *fakeRollout) {
			f.sick = failing
			if err := f.roll(t.Context(), t); exitStatus(err) != no {
				t.Error(err, f.summary())
			}
			f.wantPrinted(t, "whether configmap/stable in namespace shop has changed since the command began isn't known")
		},
		"a bad one is kept": func(t *testing.T, f *fakeRollout) {
			f.sick = failing
			err := f.roll(t.Context(), t, "--on-failure=keep")
			if exitStatus(err) != no || fmt.Sprint(f.sets) != "[10%]" || !strings.Contains(err.Error(), "To take the canary back, run: kubectl refvol rollout configmap/app -n shop --to 0%") {
				t.Error(err, f.summary())
			}
		},
		"taking it back fails at first": func(t *testing.T, f *fakeRollout) {
			f.sick, f.failSets = failing, map[int]bool{2: false, 3: true}
			if err := f.roll(t.Context(), t); exitStatus(err) != no || fmt.Sprint(f.sets) != "[10% 0%]" {
				t.Error(err, f.summary())
			}
		},
		"somebody changes it while it is taken back": func(t *testing.T, f *fakeRollout) {
			f.sick, f.conflictSets = failing, map[int]bool{2: true, 3: true}
			if err := f.roll(t.Context(), t); exitStatus(err) != no || fmt.Sprint(f.sets) != "[10% 0%]" {
				t.Error(err, f.summary())
			}
		},
		"an interrupted one goes on": func(t *testing.T, f *fakeRollout) {
			f.change("app", "new", "50%")
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[100%]" {
				t.Error(err, f.summary())
			}
		},
		"both annotations": func(t *testing.T, f *fakeRollout) {
			f.objects["app"].state.isHeld = true
			if err := f.roll(t.Context(), t); exitStatus(err) != no || !strings.Contains(err.Error(), "has both annotations") {
				t.Error(err, f.summary())
			}
		},
		"immutable": func(t *testing.T, f *fakeRollout) {
			f.isImmutable = true
			if err := f.roll(t.Context(), t); exitStatus(err) != no || !strings.Contains(err.Error(), "is immutable") || len(f.sets) > 0 {
				t.Error(err, f.summary())
			}
		},
		"taking it back fails": func(t *testing.T, f *fakeRollout) {
			f.sick, f.failSets = failing, map[int]bool{}
			for i := 2; i < 100; i++ {
				f.failSets[i] = false
			}
			err := f.roll(t.Context(), t)
			if exitStatus(err) != unknown || !strings.Contains(err.Error(), "could not be taken back: run: kubectl refvol rollout configmap/app -n shop --to 0%") {
				t.Error(err, f.summary())
			}
		},
		"without an annotation": func(t *testing.T, f *fakeRollout) {
			f.objects["app"].state.isCanary = false
			f.change("app", "new", "")
			f.objects["app"].state.share = ""
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 50% 100%]" {
				t.Error(err, f.summary())
			}
		},
		"with a share that counts as 0%": func(t *testing.T, f *fakeRollout) {
			f.change("app", "new", "ten")
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 50% 100%]" {
				t.Error(err, f.summary())
			}
		},
		"deleted meanwhile": func(t *testing.T, f *fakeRollout) {
			f.later(30*time.Second, func() { delete(f.objects, "app") })
			if err := f.roll(t.Context(), t); exitStatus(err) != no {
				t.Error(err, f.summary())
			}
		},
		"paused by somebody": func(t *testing.T, f *fakeRollout) {
			f.later(30*time.Second, func() { f.objects["app"].state.isPaused = true; f.change("app", "new", "10%") })
			if err := f.roll(t.Context(), t); exitStatus(err) != no || !strings.Contains(err.Error(), "paused by its annotation refvol.dev/rollout-paused: the share stays") || fmt.Sprint(f.sets) != "[10%]" {
				t.Error(err, f.summary())
			}
		},
		"a check that fails": func(t *testing.T, f *fakeRollout) {
			var seen []string
			f.check = func(env []string) error {
				if seen = env; fmt.Sprint(f.sets) == "[10% 50%]" {
					return errFault
				}
				return nil
			}
			err := f.roll(t.Context(), t, "--check=x")
			if exitStatus(err) != no || fmt.Sprint(f.sets) != "[10% 50% 0%]" || fmt.Sprint(seen) != "[REFVOL_SHARE=50% REFVOL_STEP=2 REFVOL_OBJECTS=configmap/app REFVOL_NAMESPACE=shop]" {
				t.Error(err, f.summary(), seen)
			}
			f.wantPrinted(t, "pod (--check) the command fails: fault")
		},
		"a check that fails once": func(t *testing.T, f *fakeRollout) {
			n := 0
			f.check = func([]string) error {
				if n++; n%4 == 0 {
					return errFault
				}
				return nil
			}
			if err := f.roll(t.Context(), t, "--check=x"); err != nil {
				t.Error(err, f.summary())
			}
		},
		"interrupted": func(t *testing.T, f *fakeRollout) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(30*time.Second, cancel)
			if err := f.roll(ctx, t); exitStatus(err) != unknown || fmt.Sprint(f.sets) != "[10%]" || !errors.Is(err, context.Canceled) {
				t.Error(err, f.summary())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newFakeCanary(20)) })
		})
	}
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

// TestRolloutOfBothKinds: held versions and canaries have different ends, so they are not rolled out together.
func TestRolloutOfBothKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRollout(20, "app", "more")
		f.objects["app"].state.isCanary = true
		var usage *usageError
		if err := f.roll(t.Context(), t); !errors.As(err, &usage) || len(f.sets) > 0 {
			t.Error(err, f.summary())
		}
	})
}

// TestNextCommand: a printed command means the same cluster and the same plugins.
func TestNextCommand(t *testing.T) {
	r := &roller{objects: []fleet.Object{{Kind: "ConfigMap", Namespace: "shop", Name: "app"}}}
	r.given = []string{"--context=prod", "--plugin-namespace=system"}
	if got, want := r.commandTo(0), "kubectl refvol rollout configmap/app -n shop --to 0% --context=prod --plugin-namespace=system"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestRunShell: the command gets the variables, and its exit status counts.
func TestRunShell(t *testing.T) {
	var out strings.Builder
	if err := runShell(t.Context(), `echo "$REFVOL_SHARE"; exit 3`, []string{"REFVOL_SHARE=10%"}, &out); err == nil || !strings.Contains(err.Error(), "exit status 3") || out.String() != "10%\n" {
		t.Error(err, out.String())
	}
	if err := runShell(t.Context(), "true", nil, &out); err != nil {
		t.Error(err)
	}
}
