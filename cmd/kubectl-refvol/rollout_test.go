package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeObject is an object in a fakeRollout.
type fakeObject struct {
	state rolloutState
	data  string
	at    time.Time
}

// fakePod is a pod whose volume shows all objects.
type fakePod struct {
	// data and version are what it shows of each object. took is when it took the last data.
	data, version map[string]string
	took, created time.Time
	ready         bool
	restarts      int32
	spread        string
}

// fakeRollout is a cluster with one node, whose volumes take changes as the plugin shows them.
type fakeRollout struct {
	// laters are later events. Each function returns true when it has happened.
	laters []func() bool
	// events are those on objects. check is the command of --check.
	events  []string
	check   func(env []string) error
	objects map[string]*fakeObject
	pods    map[string]*fakePod
	// lag is how long the plugin takes to show a version.
	lag time.Duration
	// old means that the plugin does not support rollouts. pinned means that the volumes take no changes.
	old, pinned bool
	// stuck has pods whose volumes never take a version.
	stuck map[string]bool
	// twoNodes means that half of the pods are on the node m, and isLost that this node is not ready.
	twoNodes, isLost bool
	// isCanary means that the object app is a canary: pods outside of its share show nothing of it.
	isCanary bool
	// sick changes a pod some time after it has taken data.
	sick func(f *fakeRollout, name string, pod *fakePod)
	// fails has errors for the next surveys.
	fails []error
	sets  []string
	out   []string
	// failSets are the changes that fail, by their number from 1. true means that the change is made, and only its answer is lost.
	failSets map[int]bool
	// conflictSets are the changes before which somebody else touches the object.
	conflictSets map[int]bool
	setCalls     int
	isImmutable  bool
	// stable is the state of the object that volumes show beside a canary, or nil if it can't be read.
	stable *rolloutState
}

// newFakeRollout returns pods whose volumes show objects with the data old. The objects have the data new and the annotation 0%.
func newFakeRollout(pods int, objects ...string) *fakeRollout {
	f := &fakeRollout{objects: map[string]*fakeObject{}, pods: map[string]*fakePod{}, stuck: map[string]bool{}, lag: 1500 * time.Millisecond}
	for i := range pods {
		f.pods[fmt.Sprint("pod-", i)] = &fakePod{data: map[string]string{}, version: map[string]string{}, ready: true}
	}
	for _, name := range objects {
		f.objects[name] = &fakeObject{state: rolloutState{Version: status.Version{UID: "u", ResourceVersion: "10"}}, data: "old"}
		for _, p := range f.pods {
			p.data[name], p.version[name] = "old", "10"
		}
		f.change(name, "new", "0%")
	}
	return f
}

func (f *fakeRollout) change(name, data, share string) {
	o := f.objects[name]
	n, _ := strconv.Atoi(o.state.ResourceVersion)
	o.state.ResourceVersion, o.state.share, o.data, o.at = strconv.Itoa(n+1), share, data, time.Now()
}

// later makes something happen at the first look after a time.
func (f *fakeRollout) later(d time.Duration, do func()) {
	at := time.Now().Add(d)
	f.laters = append(f.laters, func() bool {
		if time.Now().Before(at) {
			return false
		}
		do()
		return true
	})
}

// settle makes the plugin show what it may show now.
func (f *fakeRollout) settle() {
	f.laters = slices.DeleteFunc(f.laters, func(happens func() bool) bool { return happens() })
	for name, p := range f.pods {
		for of, o := range f.objects {
			percent := o.state.percent()
			if f.old {
				percent = 100
			}
			if f.isCanary && volume.RolloutPlace(types.UID(name)) > percent && time.Since(o.at) >= f.lag {
				p.data[of], p.version[of] = "", o.state.ResourceVersion
				continue
			}
			if time.Since(o.at) < f.lag || f.stuck[name] || f.pinned || p.data[of] != o.data && volume.RolloutPlace(types.UID(name)) > percent {
				continue
			}
			if p.data[of] != o.data {
				p.took = time.Now()
			}
			p.data[of], p.version[of] = o.data, o.state.ResourceVersion
		}
		if f.sick != nil && !p.took.IsZero() {
			f.sick(f, name, p)
		}
	}
}

// with returns the pods that show some data of an object.
func (f *fakeRollout) with(object, data string) (names []string) {
	for name, p := range f.pods {
		if p.data[object] == data {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// nodeOf returns the node of a pod: n, or m if half of the pods are there.
func (f *fakeRollout) nodeOf(name string) string {
	if f.twoNodes && volume.RolloutPlace(types.UID("node of "+name)) > 50 {
		return "m"
	}
	return "n"
}

// nodes returns the nodes. One that is lost is not ready, and does not answer.
func (f *fakeRollout) nodes() []fleet.Node {
	all := []fleet.Node{{Name: "n", Report: f.report("n")}}
	if !f.twoNodes {
		return all
	}
	m := fleet.Node{Name: "m", Report: f.report("m")}
	if f.isLost {
		m.Report, m.Problem = nil, &fleet.Problem{Reason: fleet.NodeNotReady}
		for name := range f.pods {
			if f.nodeOf(name) == "m" {
				m.Pods = append(m.Pods, fleet.Pod{Namespace: "shop", Name: name, UID: types.UID(name), Node: "m", Started: true})
			}
		}
	}
	return append(all, m)
}

func (f *fakeRollout) report(node string) *status.Report {
	report := &status.Report{Header: status.Header{KnowsRollout: !f.old}}
	for name, p := range f.pods {
		if f.nodeOf(name) != node {
			continue
		}
		v := status.Volume{Name: "v", Pod: status.Pod{Namespace: "shop", Name: name, UID: name}, Condition: "Current", Bytes: 1}
		for of, o := range f.objects {
			version, shown := &status.Version{UID: "u", ResourceVersion: p.version[of]}, status.VolumeObject{Object: &status.Object{Kind: "ConfigMap", Namespace: "shop", Name: of}}
			if f.isCanary && p.data[of] == "" {
				shown.Absent = version
			} else {
				shown.Shown = version
			}
			v.Objects = append(v.Objects, shown)
			if p.version[of] != o.state.ResourceVersion && !f.isCanary {
				v.Condition = "Held"
			}
		}
		if f.pinned {
			v.Condition = "Pinned"
		}
		report.Volumes = append(report.Volumes, v)
	}
	if f.isImmutable {
		report.Objects = []*status.Object{{Kind: "ConfigMap", Namespace: "shop", Name: "app", Immutable: true}}
	}
	return report
}

func (f *fakeRollout) list() (pods []corev1.Pod) {
	f.settle()
	for name, p := range f.pods {
		is := corev1.ConditionFalse
		if p.ready {
			is = corev1.ConditionTrue
		}
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(p.created)}, Spec: corev1.PodSpec{NodeName: f.nodeOf(name)}, Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: is}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: p.ready, RestartCount: p.restarts}},
		}}
		attributes := map[string]string{"configMap": "app"}
		if f.isCanary {
			attributes = map[string]string{"sources": "[{configMap: {name: stable}}, {configMap: {name: app, canary: true}}]"}
		}
		if p.spread != "" {
			attributes["spread"] = p.spread
		}
		pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName, VolumeAttributes: attributes}}}}
		pods = append(pods, pod)
	}
	return pods
}

func (f *fakeRollout) roller() *roller {
	var objects []fleet.Object
	for name := range f.objects {
		objects = append(objects, fleet.Object{Kind: "ConfigMap", Namespace: "shop", Name: name})
	}
	slices.SortFunc(objects, func(a, b fleet.Object) int { return strings.Compare(a.Name, b.Name) })
	r := &roller{rolloutOptions: rolloutOptions{
		cluster: &clusterOptions{driver: driverName}, every: time.Minute, timeout: time.Minute, unreadyFor: 10 * time.Second, onFailure: revertCanary,
	}, objects: objects}
	r.calls = rolloutCalls{
		state: func(_ context.Context, object fleet.Object) (*rolloutState, error) {
			switch {
			case object.Name == "stable" && f.stable == nil:
				return nil, errFault
			case object.Name == "stable":
				s := *f.stable
				return &s, nil
			case f.objects[object.Name] == nil:
				return nil, nil //nolint:nilnil // It is gone.
			}
			s := f.objects[object.Name].state
			return &s, nil
		},
		set: func(_ context.Context, object fleet.Object, from *rolloutState, share string, after *string) (*rolloutState, error) {
			o := f.objects[object.Name]
			f.setCalls++
			if o != nil && f.conflictSets[f.setCalls] {
				f.change(object.Name, o.data, o.state.share)
			}
			if o == nil || from.Version != o.state.Version {
				return nil, changedError(object)
			}
			isMade, fails := f.failSets[f.setCalls]
			if fails && !isMade {
				return nil, errFault
			}
			f.change(object.Name, o.data, share)
			o.state.after, o.state.isCanary = after, o.state.isCanary || from.isCanary
			f.sets = append(f.sets, share)
			if fails {
				return nil, errFault
			}
			s := o.state
			return &s, nil
		},
		survey: func(context.Context, ...fleet.Object) (*fleet.Survey, error) {
			if len(f.fails) > 0 {
				err := f.fails[0]
				f.fails = f.fails[1:]
				return nil, err
			}
			f.settle()
			return &fleet.Survey{Nodes: f.nodes()}, nil
		},
		pods: func(context.Context, string) ([]corev1.Pod, error) { return f.list(), nil },
		event: func(_ context.Context, object fleet.Object, _ status.Version, reason, text string) error {
			f.events = append(f.events, object.Name+" "+reason+": "+text)
			return nil
		},
		check: func(_ context.Context, env []string) error { return f.check(env) },
		say:   func(format string, args ...any) { f.out = append(f.out, fmt.Sprintf(format, args...)) },
		warn:  func(err error) { f.out = append(f.out, "warning: "+err.Error()) },
	}
	return r
}

// roll runs the command with flags.
func (f *fakeRollout) roll(ctx context.Context, t *testing.T, flags ...string) error {
	t.Helper()
	opts := &rolloutOptions{steps: []string{"10%", "50%", "100%"}, every: time.Minute, timeout: time.Minute, onFailure: revertCanary}
	r := f.roller()
	for _, flag := range flags {
		if text, ok := strings.CutPrefix(flag, "--to="); ok {
			opts.to, r.byHand = text, true
		}
		if text, ok := strings.CutPrefix(flag, "--max-unhealthy="); ok {
			if err := r.maxUnhealthy.Set(text); err != nil {
				t.Fatal(err)
			}
		}
		if flag == "--allow-restarts=1" {
			r.allowRestarts = 1
		}
		if flag == "--unready-for=30m" {
			r.unreadyFor = 30 * time.Minute
		}
		if text, ok := strings.CutPrefix(flag, "--check="); ok {
			r.rolloutOptions.check = text
		}
		if text, ok := strings.CutPrefix(flag, "--on-failure="); ok {
			r.onFailure = text
		}
		if text, ok := strings.CutPrefix(flag, "--steps="); ok {
			opts.steps = strings.Split(text, ",")
		}
	}
	steps, err := opts.parse()
	if err != nil {
		t.Fatal(err)
	}
	err = r.roll(ctx, steps)
	t.Logf("%s\n%v", strings.Join(f.out, "\n"), err)
	return err
}

// wantPrinted fails the test if a text was not printed.
func (f *fakeRollout) wantPrinted(t *testing.T, want string) {
	t.Helper()
	if !strings.Contains(strings.Join(f.out, "\n"), want) {
		t.Errorf("%q was not printed", want)
	}
}

// notReady returns a function that makes a pod with the data new not ready after some time.
func notReady(after time.Duration) func(*fakeRollout, string, *fakePod) {
	return func(_ *fakeRollout, _ string, p *fakePod) {
		p.ready = p.data["app"] != "new" || time.Since(p.took) < after
	}
}

func TestRollout(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"a good change reaches all": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			began := time.Now()
			err := f.roll(t.Context(), t)
			if err != nil || fmt.Sprint(f.sets) != "[10% 50% 100% 0%]" || f.objects["app"].state.after != nil || len(f.with("app", "new")) != 20 {
				t.Errorf("%v, %q", err, f.sets)
			}
			if took := time.Since(began); took < 3*time.Minute || took > 4*time.Minute {
				t.Errorf("three steps took %s", took)
			}
			f.wantPrinted(t, "configmap/app in namespace shop: done, and refvol.dev/rollout is 0% again")
		},
		"a bad change stops at the first step": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.sick = notReady(20 * time.Second)
			err := f.roll(t.Context(), t)
			bad := f.with("app", "new")
			want := fmt.Sprintf("configmap/app: stopped: unhealthy pods that have the change: %d. The share stays, so that these pods can take a revert. Write the old values back, and then run: kubectl refvol rollout configmap/app -n shop --to 100%%. Pods that have started meanwhile keep the bad values until then", len(bad))
			if err == nil || exitStatus(err) != no || err.Error() != want || len(bad) == 0 || len(bad) > 6 || fmt.Sprint(f.sets) != "[10%]" {
				t.Errorf("%v, %q have it, %q; want %s", err, bad, f.sets, want)
			}
			for _, name := range bad {
				f.wantPrinted(t, "  pod shop/"+name+" is not ready any more; container main is not ready")
			}
		},
		"a revert heals": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.sick = notReady(20 * time.Second)
			if err := f.roll(t.Context(), t); exitStatus(err) != no {
				t.Fatal(err)
			}
			f.change("app", "old", "10%")
			if err := f.roll(t.Context(), t, "--to=100%"); err != nil || f.objects["app"].state.share != "0%" || f.objects["app"].state.after != nil {
				t.Errorf("%v, %q", err, f.sets)
			}
		},
		"what ailed before is no reason to stop": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.pods["pod-0"].ready, f.pods["pod-1"].ready, f.pods["pod-1"].restarts = false, false, 7
			began := time.Now()
			f.sick = func(f *fakeRollout, _ string, _ *fakePod) {
				f.pods["pod-1"].restarts = 7 + int32(time.Since(began).Seconds())/10
			}
			if err := f.roll(t.Context(), t); err != nil {
				t.Error(err)
			}
		},
		"a restart before the pod's step is no reason": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.later(30*time.Second, func() { // by another cause
				for _, name := range f.with("app", "old") {
					f.pods[name].restarts = 1
				}
			})
			if err := f.roll(t.Context(), t); err != nil {
				t.Error(err)
			}
		},
		"a restart stops": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.sick = func(_ *fakeRollout, _ string, p *fakePod) { p.restarts = 1 }
			if err := f.roll(t.Context(), t); exitStatus(err) != no || len(f.with("app", "new")) > 6 {
				t.Error(err)
			}
			f.wantPrinted(t, " restarted once")
		},
		"a new pod that fails stops": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.later(70*time.Second, func() { // in the second step
				f.pods["late"] = &fakePod{data: map[string]string{"app": "new"}, version: map[string]string{"app": "13"}, restarts: 3, created: time.Now()}
			})
			if err := f.roll(t.Context(), t, "--steps=10%,20%,30%,40%,100%"); exitStatus(err) != no {
				t.Error(err)
			}
			f.wantPrinted(t, "pod shop/late restarted 3 times")
		},
		"an interrupted run goes on": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(90*time.Second, cancel)
			if err := f.roll(ctx, t); exitStatus(err) != unknown || f.objects["app"].state.share != "50%" || !strings.Contains(err.Error(), "interrupted: the share stays, and the same command goes on from there") {
				t.Fatal(err, f.sets)
			}
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 50% 100% 0%]" {
				t.Error(err, f.sets)
			}
		},
		"a run that goes on looks at the pods that have the change": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.sick = notReady(20 * time.Second)
			for range 2 {
				if err := f.roll(t.Context(), t); exitStatus(err) != no || fmt.Sprint(f.sets) != "[10%]" {
					t.Error(err, f.sets)
				}
			}
		},
		"somebody else's change ends it": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.later(30*time.Second, func() { f.change("app", f.objects["app"].data, "0%") }) // as a GitOps tool does
			err := f.roll(t.Context(), t)
			if exitStatus(err) != no || err.Error() != "configmap/app in namespace shop: somebody else has changed or deleted it: look at the change, and at what its annotations say now, then run the command again" {
				t.Error(err)
			}
		},
		"a deletion ends it": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.later(30*time.Second, func() { delete(f.objects, "app") })
			if err := f.roll(t.Context(), t); exitStatus(err) != no {
				t.Error(err)
			}
		},
		"by hand": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			if err := f.roll(t.Context(), t, "--to=50%"); err != nil || f.objects["app"].state.share != "50%" || f.objects["app"].state.after != nil {
				t.Error(err, f.objects["app"].state)
			}
			f.wantPrinted(t, "configmap/app: stays at 50%")
			if err := f.roll(t.Context(), t, "--to=0%"); err != nil || f.objects["app"].state.share != "0%" {
				t.Error(err, f.objects["app"].state)
			}
		},
		"a number of pods": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.sick = notReady(20 * time.Second)
			lowest := slices.MinFunc(f.with("app", "old"), func(a, b string) int {
				return volume.RolloutPlace(types.UID(a)) - volume.RolloutPlace(types.UID(b))
			})
			if err := f.roll(t.Context(), t, "--steps=1,100%"); exitStatus(err) != no || fmt.Sprint(f.with("app", "new")) != "["+lowest+"]" {
				t.Error(err, f.with("app", "new"), lowest)
			}
		},
		"a share without a pod is raised": func(t *testing.T) {
			f := newFakeRollout(2, "app")
			if err := f.roll(t.Context(), t, "--steps=1%,2%,100%"); err != nil || len(f.sets) != 3 {
				t.Error(err, f.sets)
			}
			f.wantPrinted(t, "configmap/app: no pod that is well has a place up to 1%: raised to "+f.sets[0])
			f.wantPrinted(t, "configmap/app: 2% has no more pods than the step before: left out")
		},
		"several objects": func(t *testing.T) {
			f := newFakeRollout(20, "app", "more")
			f.objects["more"].state.share = "" // its change is everywhere
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 50% 100% 0%]" || f.objects["more"].state.share != "" {
				t.Error(err, f.sets)
			}
			f.wantPrinted(t, "configmap/more in namespace shop: is at 100% already")
		},
		"several objects step together": func(t *testing.T) {
			f := newFakeRollout(20, "app", "more")
			if err := f.roll(t.Context(), t); err != nil || fmt.Sprint(f.sets) != "[10% 10% 50% 50% 100% 100% 0% 0%]" {
				t.Error(err, f.sets)
			}
		},
		"a volume that never shows it": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			stuck := slices.MinFunc(f.with("app", "old"), func(a, b string) int {
				return volume.RolloutPlace(types.UID(a)) - volume.RolloutPlace(types.UID(b))
			})
			f.stuck[stuck] = true
			err := f.roll(t.Context(), t)
			if exitStatus(err) != no || !strings.HasPrefix(err.Error(), "configmap/app: stays at 10%: --timeout 1m0s has passed: ") {
				t.Error(err)
			}
			f.wantPrinted(t, "  pod shop/"+stuck+" on node n: Held: ")
		},
		"a spread longer than the timeout": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.lag = 4 * time.Minute
			f.pods["pod-3"].spread = "5m"
			if err := f.roll(t.Context(), t); err != nil {
				t.Error(err)
			}
		},
		"a plugin that knows no rollouts": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.old = true
			err := f.roll(t.Context(), t)
			if exitStatus(err) != no || len(f.sets) != 0 || err.Error() != "configmap/app in namespace shop: the plugin of these nodes is of a release without refvol.dev/rollout, and gives the change to all pods at once: n: upgrade it first" {
				t.Error(err, f.sets)
			}
			if err := f.roll(t.Context(), t, "--to=100%"); err != nil {
				t.Error(err)
			}
		},
		"a value that is no share": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.objects["app"].state.share = "ten"
			err := f.roll(t.Context(), t)
			if exitStatus(err) != no || err.Error() != `configmap/app in namespace shop: refvol.dev/rollout is "ten", which is not a share, so all changes are held: set it with kubectl refvol rollout configmap/app -n shop --to 0%` {
				t.Error(err)
			}
			if err := f.roll(t.Context(), t, "--to=0%"); err != nil || f.objects["app"].state.share != "0%" {
				t.Error(err)
			}
		},
		"no volume": func(t *testing.T) {
			if err := newFakeRollout(0, "app").roll(t.Context(), t); exitStatus(err) != none {
				t.Error(err)
			}
		},
		"Pinned volumes only": func(t *testing.T) {
			f := newFakeRollout(3, "app")
			f.pinned = true
			if err := f.roll(t.Context(), t); exitStatus(err) != none || len(f.sets) != 0 {
				t.Error(err)
			}
			f.wantPrinted(t, "Pinned: ")
		},
		"requests that fail for a while": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.fails = []error{errFault, errFault, errFault}
			if err := f.roll(t.Context(), t); err != nil {
				t.Error(err)
			}
			f.wantPrinted(t, "warning: fault")
		},
		"requests that always fail": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.fails = slices.Repeat([]error{errFault}, 1000)
			if err := f.roll(t.Context(), t); exitStatus(err) != unknown || !errors.Is(err, errFault) {
				t.Error(err)
			}
		},
		"no right": func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.fails = []error{errForbidden}
			if err := f.roll(t.Context(), t); !errors.Is(err, errForbidden) || exitStatus(err) != unknown {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// TestRolloutAllowsRestarts: a program that restarts once at each change is healthy if it is ready at the end of the step.
func TestRolloutAllowsRestarts(t *testing.T) {
	for up, want := range map[time.Duration]int{10 * time.Second: 0, 2 * time.Minute: no} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeRollout(20, "app")
			f.sick = func(_ *fakeRollout, _ string, p *fakePod) { p.restarts, p.ready = 1, time.Since(p.took) > up }
			r := f.roller()
			r.allowRestarts = 1
			if err := r.roll(t.Context(), []rolloutStep{{percent: 10}, {percent: 100}}); exitStatus(err) != want {
				t.Errorf("ready after %s: %v", up, err)
			}
		})
	}
}

// TestRolloutOfSlowPlugins: if the plugins take too long, the command says which time has passed, and changes nothing.
func TestRolloutOfSlowPlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRollout(20, "app")
		r := f.roller()
		survey := r.calls.survey
		r.calls.survey = func(ctx context.Context, objects ...fleet.Object) (*fleet.Survey, error) {
			if pause(ctx, 70*time.Second); ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return survey(ctx, objects...)
		}
		err := r.roll(t.Context(), []rolloutStep{{percent: 10}})
		if exitStatus(err) != unknown || !strings.Contains(err.Error(), "configmap/app: --timeout 1m0s has passed") || len(f.sets) > 0 {
			t.Errorf("status %d: %v; shares set: %q", exitStatus(err), err, f.sets)
		}
	})
}

// TestRolloutFlags: wrong flags are reported before any request.
func TestRolloutFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"--steps=10":                "",
		"--steps=1,10%,50%,100%":    "",
		"--to=0%":                   "",
		"--to=7":                    "",
		"--steps=10%,10%":           "--steps: 10% must be more than the step before",
		"--steps=5,10%,3":           "--steps: 3 must be more than the step before",
		"--steps=0%":                "--steps: 0% gives the change to no pod: use --to 0% to hold it",
		"--steps=0":                 `--steps: "0" is neither a share from 0% to 100% nor a number of pods`,
		"--steps=":                  "--steps must not be empty",
		"--to=101%":                 `--to: "101%" is neither a share from 0% to 100% nor a number of pods`,
		"--to=10% --steps=10%":      "if any flags in the group [to steps] are set none of the others can be; [steps to] were all set",
		"--every=-1s":               "--every: -1s is negative",
		"--timeout=0s":              "--timeout: 0s is not positive",
		"--allow-restarts=-1":       "--allow-restarts: -1 is negative",
		"--status-port=0 --to=100%": "--status-port must not be 0",
	} {
		args := append([]string{"rollout", "configmap/app", "-n", "shop", "--server=http://127.0.0.1:1", "--request-timeout=1s", "--timeout=1s"}, strings.Fields(flags)...)
		_, _, err := runCommand(t, args...)
		if exitStatus(err) != unknown || want != "" && err.Error() != want || want == "" && !strings.Contains(err.Error(), "get the metadata of configmap/app in namespace shop") {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
	}
}
