package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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

// rolloutRun is a run of the command for 20 pods whose volumes name the object app, and what it must do.
type rolloutRun struct {
	before func(t *testing.T, f *fakeRollout)
	flags  string
	status int
	// sets are the shares that are set: "" for any, "-" for none. fails is in the error, and prints is in the output.
	sets, fails, prints string
	after               func(t *testing.T, f *fakeRollout, err error)
}

func testRuns(t *testing.T, cluster func() *fakeRollout, runs map[string]rolloutRun) {
	t.Helper()
	for name, run := range runs {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := cluster()
				if run.before != nil {
					run.before(t, f)
				}
				err := f.roll(t.Context(), t, run.flags)
				sets := cmp.Or(strings.Join(f.sets, " "), "-")
				if exitStatus(err) != run.status || run.sets != "" && sets != run.sets || !strings.Contains(message(err), run.fails) {
					t.Errorf("status %d, %v; want %d, %s; %s", exitStatus(err), err, run.status, run.fails, f.summary())
				}
				if !strings.Contains(f.printed(), run.prints) {
					t.Errorf("%q was not printed", run.prints)
				}
				if run.after != nil {
					run.after(t, f, err)
				}
			})
		})
	}
}

func are(sick func(f *fakeRollout, name string, p *fakePod)) func(*testing.T, *fakeRollout) {
	return func(_ *testing.T, f *fakeRollout) { f.sick = sick }
}

func afterwards(d time.Duration, do func(f *fakeRollout)) func(*testing.T, *fakeRollout) {
	return func(_ *testing.T, f *fakeRollout) { f.later(d, func() { do(f) }) }
}

func notReady(_ *fakeRollout, _ string, p *fakePod) {
	p.ready = p.data["app"] != "new" || time.Since(p.took) < 20*time.Second
}

// restartsOnce makes pods with the change restart, and be ready after a time.
func restartsOnce(up time.Duration) func(*testing.T, *fakeRollout) {
	return are(func(_ *fakeRollout, _ string, p *fakePod) { p.restarts, p.ready = 1, time.Since(p.took) > up })
}

// newest returns a pod that has just been created, and has the change.
func newest(version string, ready bool) *fakePod {
	return &fakePod{data: map[string]string{"app": "new"}, version: map[string]string{"app": version}, ready: ready, took: time.Now(), created: time.Now()}
}

func TestRollout(t *testing.T) {
	const all = "10% 50% 100% 0%"
	lowest := func(f *fakeRollout) string {
		return slices.MinFunc(slices.Collect(maps.Keys(f.pods)), func(a, b string) int {
			return volume.RolloutPlace(types.UID(a)) - volume.RolloutPlace(types.UID(b))
		})
	}
	testRuns(t, func() *fakeRollout { return newFakeRollout(20, "app") }, map[string]rolloutRun{
		"a good change reaches all": {
			sets: all, prints: "configmap/app in namespace shop: done, and refvol.dev/rollout is 0% again",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				took := time.Since(f.began)
				if took < 3*time.Minute || took > 4*time.Minute || f.objects["app"].state.after != nil || len(f.with("app", "new")) != 20 {
					t.Errorf("three steps took %s; %s", took, f.summary())
				}
			},
		},
		"a bad change stops at the first step": {
			before: are(notReady), status: no, sets: "10%",
			after: func(t *testing.T, f *fakeRollout, err error) {
				bad := f.with("app", "new")
				want := fmt.Sprintf("configmap/app: stopped: unhealthy pods that have the change: %d. The share stays, so that these pods can take a revert. Write the old values back, and then run: kubectl refvol rollout configmap/app -n shop --to 100%%. Pods that have started meanwhile keep the bad values until then", len(bad))
				if message(err) != want || len(bad) == 0 || len(bad) > 6 {
					t.Errorf("%v, %q have it; want %s", err, bad, want)
				}
				for _, name := range bad {
					if want := "  pod shop/" + name + " is not ready any more; container main is not ready"; !strings.Contains(f.printed(), want) {
						t.Errorf("%q was not printed", want)
					}
				}
			},
		},
		"a revert heals": {
			before: func(t *testing.T, f *fakeRollout) {
				f.sick = notReady
				if err := f.roll(t.Context(), t, ""); exitStatus(err) != no {
					t.Fatal(err)
				}
				f.change("app", "old", "10%")
			},
			flags: "--to=100%", sets: "10% 100% 0%",
		},
		"a restart stops":              {before: restartsOnce(-1), status: no, sets: "10%", prints: " restarted once"},
		"a restart that is allowed":    {before: restartsOnce(10 * time.Second), flags: "--allow-restarts=1"},
		"a time that allows a restart": {before: restartsOnce(20 * time.Second), flags: "--allow-restarts=1 --unready-for=30m"},
		"an interrupted run goes on": {
			before: func(t *testing.T, f *fakeRollout) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(90*time.Second, cancel)
				err := f.roll(ctx, t, "")
				if exitStatus(err) != unknown || f.objects["app"].state.share != "50%" || !strings.Contains(err.Error(), "interrupted: the share stays, and the same command goes on from there") {
					t.Error(err, f.sets)
				}
			},
			sets: all,
		},
		"somebody else's change ends it": {
			before: afterwards(30*time.Second, func(f *fakeRollout) { f.change("app", f.objects["app"].data, "0%") }), // as a GitOps tool does
			status: no,
			fails:  "configmap/app in namespace shop: somebody else has changed or deleted it: look at the change, and at what its annotations say now, then run the command again",
		},
		"by hand": {
			flags: "--to=50%", sets: "50%", prints: "configmap/app: stays at 50%",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				err := f.roll(t.Context(), t, "--to=0%")
				if state := f.objects["app"].state; err != nil || state.share != "0%" || state.after != nil {
					t.Error(err, state)
				}
			},
		},
		"a number of pods": {
			before: are(notReady), flags: "--steps=1,100%", status: no,
			after: func(t *testing.T, f *fakeRollout, _ error) {
				if got := fmt.Sprint(f.with("app", "new")); got != "["+lowest(f)+"]" {
					t.Errorf("%s have it, want %s", got, lowest(f))
				}
			},
		},
		"a share without a pod is raised": {
			before: func(_ *testing.T, f *fakeRollout) { *f = *newFakeRollout(2, "app") }, flags: "--steps=1%,2%,100%",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				for _, want := range []string{"no pod that is well has a place up to 1%: raised to " + f.sets[0], "2% has no more pods than the step before: left out"} {
					if !strings.Contains(f.printed(), "configmap/app: "+want) || len(f.sets) != 3 {
						t.Errorf("%q was not printed; %s", want, f.summary())
					}
				}
			},
		},
		"several objects step together": {
			before: func(_ *testing.T, f *fakeRollout) { *f = *newFakeRollout(20, "app", "more") },
			sets:   "10% 10% 50% 50% 100% 100% 0% 0%",
		},
		"held versions and canaries have different ends": {
			before: func(_ *testing.T, f *fakeRollout) {
				*f = *newFakeRollout(20, "app", "more")
				f.objects["app"].state.isCanary = true
			},
			status: unknown, sets: "-", fails: "configmap/app in namespace shop has the annotation refvol.dev/canary, and not all objects have: roll out canary objects by themselves",
			after: func(t *testing.T, _ *fakeRollout, err error) {
				if !errors.As(err, new(*usageError)) {
					t.Errorf("the error is a %T", err)
				}
			},
		},
		"a volume that never shows it": {
			before: func(_ *testing.T, f *fakeRollout) { f.stuck[lowest(f)] = true },
			status: no, fails: "configmap/app: stays at 10%: --timeout 1m0s has passed: ",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				if want := "  pod shop/" + lowest(f) + " on node n: Held: "; !strings.Contains(f.printed(), want) {
					t.Errorf("%q was not printed", want)
				}
			},
		},
		"a spread longer than the timeout": {before: func(_ *testing.T, f *fakeRollout) { f.lag, f.pods["pod-3"].spread = 4*time.Minute, "5m" }},
		"a plugin that knows no rollouts": {
			before: func(_ *testing.T, f *fakeRollout) { f.old = true },
			status: no, sets: "-", fails: "configmap/app in namespace shop: the plugin of these nodes is of a release without refvol.dev/rollout, and gives the change to all pods at once: n: upgrade it first",
			after: func(t *testing.T, f *fakeRollout, _ error) {
				must.Do(t, f.roll(t.Context(), t, "--to=100%"))
			},
		},
		"a value that is no share": {
			before: func(_ *testing.T, f *fakeRollout) { f.objects["app"].state.share = "ten" },
			status: no, fails: `configmap/app in namespace shop: refvol.dev/rollout is "ten", which is not a share, so all changes are held: set it with kubectl refvol rollout configmap/app -n shop --to 0%`,
			after: func(t *testing.T, f *fakeRollout, _ error) {
				if err := f.roll(t.Context(), t, "--to=0%"); err != nil || f.objects["app"].state.share != "0%" {
					t.Error(err)
				}
			},
		},
		"no volume":           {before: func(_ *testing.T, f *fakeRollout) { *f = *newFakeRollout(0, "app") }, status: none},
		"Pinned volumes only": {before: func(_ *testing.T, f *fakeRollout) { f.pinned = true }, status: none, sets: "-", prints: "Pinned: "},
		"requests that always fail": {
			before: func(_ *testing.T, f *fakeRollout) { f.fails = slices.Repeat([]error{errFault}, 1000) }, status: unknown, fails: errFault.Error(),
		},
		"no right":     {before: func(_ *testing.T, f *fakeRollout) { f.fails = []error{errForbidden} }, status: unknown, fails: errForbidden.Error()},
		"slow plugins": {before: func(_ *testing.T, f *fakeRollout) { f.slow = 70 * time.Second }, status: unknown, sets: "-", fails: "configmap/app: --timeout 1m0s has passed"},
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
		args := append([]string{"rollout", "configmap/app", "-n", "shop", "--server=http://127.0.0.1:1", "--timeout=250ms"}, strings.Fields(flags)...)
		_, _, err := runCommand(t, args...)
		if exitStatus(err) != unknown || want != "" && err.Error() != want || want == "" && !strings.Contains(err.Error(), "get the metadata of configmap/app in namespace shop") {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
	}
}
