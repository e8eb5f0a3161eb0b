package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/must"
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
	began time.Time
	// slow is how long a survey takes.
	slow time.Duration
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
	// failSets is the number of the first change that fails, from 1, or 0 for none.
	failSets, setCalls int

	isImmutable bool
	// stable is the state of the object that volumes show beside a canary, or nil if it can't be read.
	stable *rolloutState
}

// newFakeRollout returns pods whose volumes show objects with the data old. The objects have the data new and the annotation 0%.
func newFakeRollout(pods int, objects ...string) *fakeRollout {
	f := &fakeRollout{began: time.Now(), objects: map[string]*fakeObject{}, pods: map[string]*fakePod{}, stuck: map[string]bool{}, lag: 1500 * time.Millisecond}
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
			if o == nil || from.Version != o.state.Version {
				return nil, changedError(object)
			}
			if f.failSets > 0 && f.setCalls >= f.failSets {
				return nil, errFault
			}
			f.change(object.Name, o.data, share)
			o.state.after, o.state.isCanary = after, o.state.isCanary || from.isCanary
			f.sets = append(f.sets, share)
			s := o.state
			return &s, nil
		},
		survey: func(ctx context.Context, _ ...fleet.Object) (*fleet.Survey, error) {
			if len(f.fails) > 0 {
				err := f.fails[0]
				f.fails = f.fails[1:]
				return nil, err
			}
			if f.slow > 0 {
				if pause(ctx, f.slow); ctx.Err() != nil {
					return nil, ctx.Err()
				}
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

func (f *fakeRollout) roll(ctx context.Context, t *testing.T, flags string) error {
	t.Helper()
	opts, r := &rolloutOptions{every: time.Minute, timeout: time.Minute, onFailure: revertCanary}, f.roller()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringSliceVar(&opts.steps, "steps", []string{"10%", "50%", "100%"}, "")
	fs.StringVar(&opts.to, "to", "", "")
	fs.Var(&r.maxUnhealthy, "max-unhealthy", "")
	fs.Int32Var(&r.allowRestarts, "allow-restarts", 0, "")
	fs.DurationVar(&r.unreadyFor, "unready-for", r.unreadyFor, "")
	fs.BoolVar(&r.opened, "opened", false, "")
	fs.StringVar(&r.rolloutOptions.check, "check", "", "")
	fs.StringVar(&r.onFailure, "on-failure", revertCanary, "")
	err := fs.Parse(strings.Fields(flags))
	r.byHand = opts.to != ""
	steps, wrong := opts.parse()
	must.Do(t, errors.Join(err, wrong))
	err = r.roll(ctx, steps)
	t.Logf("%s\n%v", f.printed(), err)
	return err
}

func (f *fakeRollout) printed() string { return strings.Join(f.out, "\n") }
