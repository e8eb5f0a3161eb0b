package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

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
		"files that nobody opens":          {flags: "--opened", status: no, sets: "10%", fails: "configmap/app: stays at 10%: --timeout 1m0s has passed: ", prints: "OpenUnknown: "},
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
