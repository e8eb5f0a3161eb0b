package publisher

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

var errKilled = errors.New("killed half-way")

// putShare is put with a rollout annotation.
func (o *fakeObjects) putShare(ref volume.Ref, share string, pairs ...string) {
	o.mu.Lock()
	o.rollouts[ref] = share
	o.mu.Unlock()
	o.put(ref, pairs...)
}

// updateShare is putShare, and waits until nothing happens any more.
func (e *env) updateShare(ref volume.Ref, share string, pairs ...string) {
	e.Helper()
	e.objects.putShare(ref, share, pairs...)
	e.settle()
}

// shares returns a share that excludes the pod of a request by one percent, and the next one.
func shares(r binding.Request) (out, in string) {
	place := volume.RolloutPlace(r.Pod.UID)
	return fmt.Sprintf("%d%%", place-1), fmt.Sprintf("%d%%", place)
}

func (e *env) wantCondition(want Condition, parts ...string) {
	e.Helper()
	s := e.status()
	ok := s.Condition == want
	for _, part := range parts {
		ok = ok && strings.Contains(s.Reason, part)
	}
	if !ok {
		e.Errorf("%s (%s), want %s %q", s.Condition, s.Reason, want, parts)
	}
}

func (e *env) wantShown(ref volume.Ref, want volume.Version) {
	e.Helper()
	if got := e.status().Shown[ref]; got != want {
		e.Errorf("%s: shown at %v, want %v", ref, got, want)
	}
}

func (e *env) generation(r binding.Request) string {
	e.Helper()
	name, err := os.Readlink(filepath.Join(e.mounts.directory(r.Target), "..data"))
	if err != nil {
		e.Fatal(err)
	}
	return name
}

// TestRollout: a pod keeps what it shows until the share reaches its place, also after a restart, and renders nothing meanwhile.
func TestRollout(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			o := &fakeObserver{}
			inBubbleWith(t, func(opts *Options) { opts.Observer = o }, func(e *env) {
				app := configMap("app")
				r := e.request("v1", "configMap", "app", "writeStrategy", strategy)
				out, in := shares(r)
				e.objects.putShare(app, "0%", "a", "1")
				e.publish(r) // a new pod gets the newest state
				e.wantFiles(r, "a", "1")
				e.wantCondition(ConditionCurrent)
				first := e.objects.get(app).Version
				e.updateShare(app, "0%", "a", "2")
				e.wantFiles(r, "a", "1")
				e.wantCondition(ConditionHeld, "a newer version for 0% of the pods", "place is "+strings.TrimSuffix(in, "%"))
				e.wantShown(app, first)
				e.updateShare(app, out, "a", "3")
				e.wantFiles(r, "a", "1")
				e.resume()
				e.wantFiles(r, "a", "1")
				e.wantCondition(ConditionHeld, out+" of the pods")
				e.wantShown(app, first)
				if got := e.recorded(r)[app]; got != first {
					t.Errorf("the record has %v", got)
				}
				reopens := 0
				e.mounts.on("Reopen", func() error { reopens++; return nil })
				after(time.Hour)
				e.mounts.on("Reopen", nil)
				if reopens > 0 {
					t.Errorf("the files were looked at %d times while nothing changed", reopens)
				}
				e.updateShare(app, in, "a", "3")
				e.wantFiles(r, "a", "3")
				e.wantCondition(ConditionCurrent)
				e.wantNoRecovery()
				e.updateShare(app, "0%", "a", "3") // a version that changes no file is no change
				e.wantCondition(ConditionCurrent)
				e.wantShown(app, e.objects.get(app).Version)
				e.updateShare(app, "", "a", "4")
				e.wantFiles(r, "a", "4")
				if _, _, took := o.take(); len(took) != 2 || took[0]+took[1] > 1e9 {
					t.Errorf("propagated after %v", took)
				}
				e.wantEvents()
				e.end(r)
			})
		})
	}
}

// A revert of what waits needs no write, also after a restart.
func TestARevertOfWhatWaits(t *testing.T) {
	for condition, attributes := range map[Condition][]string{ConditionHeld: {"configMap", "app"}, ConditionSpreading: {"configMap", "app", "spread", "1h"}} {
		inBubbleOf(t, string(condition), func(e *env) {
			app, share := configMap("app"), map[Condition]string{ConditionHeld: "0%"}[condition]
			e.objects.putShare(app, share, "a", "1")
			r := e.publishNew("v1", attributes...)
			generation := e.generation(r)
			for _, restarts := range []bool{false, true} {
				e.updateShare(app, share, "a", "bad", "b", "bad")
				e.wantCondition(condition)
				if restarts {
					e.resume()
					e.wantCondition(condition)
				}
				e.updateShare(app, share, "a", "1")
				e.wantCondition(ConditionCurrent)
				e.wantShown(app, e.objects.get(app).Version)
			}
			if after(2 * time.Hour); e.generation(r) != generation {
				e.Error("the files were written again")
			}
		})
	}
}

// Other objects of the volume are updated. Those that share a file with a held one wait with it.
func TestRolloutBesideOthers(t *testing.T) {
	for _, strategy := range strategies {
		inBubbleOf(t, strategy, func(e *env) {
			app, db, ca := configMap("app"), secret("db"), configMap("ca")
			r := e.request("v1", "writeStrategy", strategy, "sources", `[
					{versions: {path: versions.json}},
					{configMap: {name: app}},
					{secret: {name: db}},
					{configMap: {name: ca, optional: true}},
					{env: {path: app.env, envFrom: [{configMapRef: {name: ca, optional: true}}]}},
					{join: {path: all, sources: [{configMap: {name: app, key: a}}, {configMap: {name: ca, key: c, optional: true}}]}}]`)
			e.objects.putShare(app, "0%", "a", "1", "old", "x")
			e.objects.put(db, "p", "1")
			e.publish(r)
			want := func(pairs ...string) {
				e.Helper()
				got := e.mounts.files(r.Target)
				maps.DeleteFunc(got, func(path, text string) bool { return path == "versions.json" || text == "" }) // InPlace leaves empty files
				if !maps.Equal(got, mapOf(pairs)) {
					e.Errorf("the volume shows %v, want %v", got, pairs)
				}
			}
			shown := e.objects.get(app).Version
			e.objects.putShare(app, "0%", "a", "2", "new", "y") // keys disappear and appear
			e.update(db, "p", "2", "q", "2")
			want("a", "1", "old", "x", "p", "2", "q", "2", "all", "1\n")
			e.wantCondition(ConditionHeld, "ConfigMap shop/app has a newer version for 0% of the pods")
			e.wantShown(app, shown)
			e.wantShown(db, e.objects.get(db).Version)
			text := e.mounts.files(r.Target)["versions.json"]
			if !strings.Contains(text, `"`+shown.ResourceVersion+`"`) || !strings.Contains(text, `"`+e.objects.get(db).ResourceVersion+`"`) {
				e.Errorf("versions: %s", text)
			}
			// ca appears, with the smallest share that includes this pod. Its part of all must wait, so it waits as a whole.
			e.updateShare(ca, fmt.Sprintf("%d%%", volume.RolloutPlace(r.Pod.UID)), "c", "C")
			want("a", "1", "old", "x", "p", "2", "q", "2", "all", "1\n")
			e.wantCondition(ConditionHeld, "shop/app has a newer", "shop/ca waits for the other objects in its files")
			e.wantShown(ca, volume.Version{})
			e.resume()
			e.update(db, "p", "3")
			want("a", "1", "old", "x", "p", "3", "all", "1\n")
			e.wantShown(app, shown)
			e.updateShare(app, "100%", "a", "2", "new", "y")
			want("a", "2", "new", "y", "p", "3", "c", "C", "app.env", "c=C\n", "all", "2\nC\n")
			e.wantCondition(ConditionCurrent)
			e.wantEvents()
			e.end(r)
		})
	}
}

// An invalid annotation holds every version, and is reported once.
func TestRolloutOfAMistake(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.putShare(configMap("app"), "ten", "a", "1")
		r := e.publishNew("v1")
		e.wantCondition(ConditionCurrent)
		e.updateShare(configMap("app"), "ten", "a", "2")
		e.wantFiles(r, "a", "1")
		e.wantCondition(failure.VolumeUpdateFailed, `"ten", which is not a percentage`)
		e.objects.putShare(configMap("app"), "ten", "a", "3")
		e.wait(5 * testResync)
		e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
	})
}

// A missing link is created, to what is held. If there are no files, or only torn ones, nothing is held.
func TestRolloutOfMissingAndTornFiles(t *testing.T) {
	for name, want := range map[string]string{"a": "1", "..data": "2"} {
		inBubble(t, func(e *env) {
			e.objects.putShare(configMap("app"), "0%", "a", "1")
			r := e.publishNew("v1")
			e.halt()
			e.removeFile(r, name)
			e.objects.putShare(configMap("app"), "0%", "a", "2")
			e.resume()
			e.wantFiles(r, "a", want)
		})
	}
	inBubble(t, func(e *env) {
		e.objects.putShare(configMap("app"), "0%", "a", "1")
		r := e.publishNew("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.writes.set(nil, func() error { return errKilled })
		e.updateShare(configMap("app"), "", "a", "2")
		e.writes.set(nil, nil)
		e.objects.putShare(configMap("app"), "0%", "a", "3")
		after(2 * testResync)
		e.wantFiles(r, "a", "3")
	})
}

// A withdrawal does not wait, nor does an object that is allowed again, nor what shares a file with it.
func TestRolloutOfAWithdrawal(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		e.updateShare(configMap("app"), "0%", "a", "2")
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.grant(access)
		e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")
		e.wantCondition(failure.RefForbidden)
		e.grant(access, sharedSecret, sharedConfig)
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.wantCondition(ConditionHeld)
	})
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["sources"] = `
- configMap: {name: app}
- env: {path: app.env, envFrom: [{configMapRef: {name: ca, namespace: platform}}, {configMapRef: {name: app}}]}
`
		e.publish(r)
		e.updateShare(configMap("app"), "0%", "a", "2")
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\na=1\n")
		e.grant(access)
		e.wantFiles(r, "a", "2", "app.env", "a=2\n")
		e.wantCondition(failure.RefForbidden)
	})
}

// TestRolloutOfATornRecord: files that a killed process left torn get the newest version, at once even with spread. Files that are only old
// after a restart don't.
func TestRolloutOfATornRecord(t *testing.T) {
	for _, isTorn := range []bool{false, true} {
		inBubble(t, func(e *env) {
			e.objects.putShare(configMap("app"), "0%", "a", "1")
			r := e.publishNew("v1", "configMap", "app", "writeStrategy", "InPlace", "spread", "5m")
			e.halt()
			want := "1"
			if isTorn {
				want = "2"
				generation := filepath.Join(e.mounts.directory(r.Target), e.generation(r))
				text := e.encoded(r) + "torn\n"
				if err := unix.Setxattr(generation, e.opts.AttributePrefix+"record", []byte(text), 0); err != nil {
					t.Fatal(err)
				}
			}
			e.objects.putShare(configMap("app"), "0%", "a", "2")
			e.resume()
			e.wantFiles(r, "a", want)
			e.updateShare(configMap("app"), "100%", "a", "3")
			e.wantFiles(r, "a", want) // it is whole again and waits for its moment
		})
	}
}

// TestRolloutOfAWithdrawnFile: an env file that was removed with a refused object comes back without it, although its other object is held.
func TestRolloutOfAWithdrawnFile(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["sources"] = `
- configMap: {name: app}
- configMap: {name: other}
- env: {path: app.env, envFrom: [{configMapRef: {name: ca, namespace: platform}}, {configMapRef: {name: app}}]}
`
		e.objects.put(configMap("other"), "o", "1")
		e.publish(r)
		e.remove(configMap("other")) // nothing can be rendered
		e.grant(access)
		e.wantFiles(r, "a", "1", "o", "1")
		e.objects.putShare(configMap("app"), "0%", "a", "2")
		e.update(configMap("other"), "o", "1")
		e.wantFiles(r, "a", "2", "o", "1", "app.env", "a=2\n")
	})
}

// TestRolloutOfWhatIsAtOnce: an optional object that is allowed again is shown at once, and a deleted one is removed at once, with what
// shares a file with it.
func TestRolloutOfWhatIsAtOnce(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		e.grant(access, sharedConfig)
		e.objects.putShare(sharedSecret, "0%", "password", "p2")
		e.grant(access, sharedConfig, sharedSecret)
		e.wantFiles(r, "a", "1", "password", "p2", "app.env", "CA=c1\nOWN=1\n")
	})
	inBubble(t, func(e *env) {
		e.objects.putShare(configMap("app"), "0%", "a", "1")
		e.objects.put(configMap("db"), "p", "1")
		r := e.publishNew("v1", "sources", `[{join: {path: all, sources: [{configMap: {name: app, key: a}}, {configMap: {name: db, key: p, optional: true}}]}}]`)
		e.updateShare(configMap("app"), "0%", "a", "2")
		e.wantFiles(r, "all", "1\n1\n")
		e.remove(configMap("db"))
		e.wantFiles(r, "all", "2\n")
	})
}
