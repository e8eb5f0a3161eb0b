package publisher

import (
	"errors"
	"fmt"
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
			inStoppedBubble(t, func(opts *Options) { opts.Observer = o }, func(e *env) {
				e.run()
				app := configMap("app")
				r := e.request("v1", "configMap", "app", "writeStrategy", strategy)
				out, in := shares(r)
				e.objects.putShare(app, "0%", "a", "1")
				e.publish(r) // a new pod gets the newest state
				e.wantFiles(r, "a", "1")
				e.wantCondition(ConditionCurrent)
				first := e.objects.get(app).Version
				e.objects.putShare(app, "0%", "a", "2")
				e.settle()
				e.wantFiles(r, "a", "1")
				e.wantCondition(ConditionHeld, "a newer version for 0% of the pods", "place is "+strings.TrimSuffix(in, "%"))
				e.wantShown(app, first)
				e.objects.putShare(app, out, "a", "3")
				e.settle()
				e.wantFiles(r, "a", "1")
				e.restart()
				e.settle()
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
				e.objects.putShare(app, in, "a", "3")
				e.settle()
				e.wantFiles(r, "a", "3")
				e.wantCondition(ConditionCurrent)
				e.wantNoRecovery()
				e.objects.putShare(app, "0%", "a", "3") // a version that changes no file is no change
				e.settle()
				e.wantCondition(ConditionCurrent)
				e.wantShown(app, e.objects.get(app).Version)
				e.objects.putShare(app, "", "a", "4")
				e.settle()
				e.wantFiles(r, "a", "4")
				if _, _, took := o.take(); len(took) != 2 || took[0]+took[1] > 1e9 {
					t.Errorf("propagated after %v", took)
				}
				e.wantEvents()
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// A revert needs no write, also after a restart.
func TestRolloutOfARevert(t *testing.T) {
	inBubble(t, func(e *env) {
		app := configMap("app")
		r := e.request("v1")
		e.objects.putShare(app, "0%", "a", "1")
		e.publish(r)
		generation := e.generation(r)
		for _, restarts := range []bool{false, true} {
			e.objects.putShare(app, "0%", "a", "bad", "b", "bad")
			e.settle()
			e.wantCondition(ConditionHeld)
			if restarts {
				e.restart()
				e.settle()
				e.wantCondition(ConditionHeld)
			}
			e.objects.putShare(app, "0%", "a", "1")
			e.settle()
			e.wantCondition(ConditionCurrent)
			e.wantShown(app, e.objects.get(app).Version)
		}
		if now := e.generation(r); now != generation {
			t.Error("the files were written again")
		}
	})
}

// Other objects of the volume are updated. Those that share a file with a held one wait with it.
func TestRolloutBesideOthers(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			inBubble(t, func(e *env) {
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
				files := func() map[string]string {
					all := e.mounts.files(r.Target)
					delete(all, "versions.json")
					return all
				}
				want := func(pairs ...string) {
					t.Helper()
					got := files()
					for i := 0; i < len(pairs); i += 2 {
						if v, ok := got[pairs[i]]; !ok && pairs[i+1] != "-" || ok && v != pairs[i+1] && !(pairs[i+1] == "-" && v == "") {
							t.Errorf("%s is %q, want %q; all: %v", pairs[i], v, pairs[i+1], got)
						}
						delete(got, pairs[i])
					}
					if len(got) > 0 {
						t.Errorf("also %v", got)
					}
				}
				shown := e.objects.get(app).Version
				e.objects.putShare(app, "0%", "a", "2", "new", "y") // keys disappear and appear
				e.objects.put(db, "p", "2", "q", "2")
				e.settle()
				want("a", "1", "old", "x", "p", "2", "q", "2", "app.env", "", "all", "1\n")
				e.wantCondition(ConditionHeld, "ConfigMap shop/app has a newer version for 0% of the pods")
				e.wantShown(app, shown)
				e.wantShown(db, e.objects.get(db).Version)
				text := e.mounts.files(r.Target)["versions.json"]
				if !strings.Contains(text, `"`+shown.ResourceVersion+`"`) || !strings.Contains(text, `"`+e.objects.get(db).ResourceVersion+`"`) {
					t.Errorf("versions: %s", text)
				}
				// ca appears, with the smallest share that includes this pod. Its part of all must wait, so it waits as a whole.
				e.objects.putShare(ca, fmt.Sprintf("%d%%", volume.RolloutPlace(r.Pod.UID)), "c", "C")
				e.settle()
				want("a", "1", "old", "x", "p", "2", "q", "2", "app.env", "", "all", "1\n")
				e.wantCondition(ConditionHeld, "shop/app has a newer", "shop/ca waits for the other objects in its files")
				e.wantShown(ca, volume.Version{})
				e.restart()
				e.settle()
				e.objects.put(db, "p", "3")
				e.settle()
				want("a", "1", "old", "x", "p", "3", "q", "-", "app.env", "", "all", "1\n")
				e.wantShown(app, shown)
				e.objects.putShare(app, "100%", "a", "2", "new", "y")
				e.settle()
				want("a", "2", "old", "-", "new", "y", "p", "3", "q", "-", "c", "C", "app.env", "c=C\n", "all", "2\nC\n")
				e.wantCondition(ConditionCurrent)
				e.wantEvents()
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// A held version may be one that cannot be shown, for example without a required key.
func TestRolloutOfWhatCannotBeShown(t *testing.T) {
	inBubble(t, func(e *env) {
		app := configMap("app")
		r := e.request("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}]}}, {secret: {name: db}}]")
		e.objects.putShare(app, "0%", "a", "1")
		e.objects.put(secret("db"), "p", "1")
		e.publish(r)
		e.objects.putShare(app, "0%", "b", "1")
		e.objects.put(secret("db"), "p", "2")
		e.settle()
		e.wantFiles(r, "a", "1", "p", "2")
		e.wantCondition(ConditionHeld)
		e.objects.putShare(app, "100%", "b", "1")
		e.settle()
		e.wantFiles(r, "a", "1", "p", "2")
		e.wantCondition(failure.RefKeyNotFound)
	})
}

// Deletions and what follows them; an object of which nothing is shown.
func TestRolloutOfDeletedAndRecreated(t *testing.T) {
	for _, onDelete := range []string{"Keep", "Remove"} {
		t.Run(onDelete, func(t *testing.T) {
			inBubble(t, func(e *env) {
				app, db := configMap("app"), configMap("db")
				r := e.request("v1", "onDelete", onDelete, "sources", "[{configMap: {name: app}}, {configMap: {name: db, optional: true}}]")
				e.objects.putShare(app, "0%", "a", "1")
				e.publish(r)
				e.objects.putShare(db, "0%", "p", "1") // it is added, because nothing of it is shown
				e.settle()
				e.wantFiles(r, "a", "1", "p", "1")
				e.wantCondition(ConditionCurrent)
				e.objects.remove(app)
				e.settle()
				e.objects.putShare(app, "0%", "a", "2") // with another UID
				e.settle()
				if onDelete == "Keep" {
					e.wantFiles(r, "a", "1", "p", "1")
					e.wantCondition(ConditionHeld, "shop/app")
				} else { // there is nothing to keep
					e.wantFiles(r, "a", "2", "p", "1")
					e.wantCondition(ConditionCurrent)
				}
				e.unpublish(r)
			})
		})
	}
}

// An invalid annotation holds every version, and is reported once.
func TestRolloutOfAMistake(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		e.objects.putShare(configMap("app"), "ten", "a", "1")
		e.publish(r)
		e.wantCondition(ConditionCurrent)
		e.objects.putShare(configMap("app"), "ten", "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantCondition(failure.VolumeUpdateFailed, `"ten", which is not a percentage`)
		e.objects.putShare(configMap("app"), "ten", "a", "3")
		after(5 * testResync)
		e.settle()
		e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
	})
}

// A missing link is created, to what is held. If there are no files, or only torn ones, nothing is held.
func TestRolloutOfMissingAndTornFiles(t *testing.T) {
	for name, want := range map[string]string{"a": "1", "..data": "2"} {
		inBubble(t, func(e *env) {
			r := e.request("v1")
			e.objects.putShare(configMap("app"), "0%", "a", "1")
			e.publish(r)
			e.halt()
			if err := os.Remove(filepath.Join(e.mounts.directory(r.Target), name)); err != nil {
				t.Fatal(err)
			}
			e.objects.putShare(configMap("app"), "0%", "a", "2")
			e.restart()
			e.settle()
			e.wantFiles(r, "a", want)
		})
	}
	inBubble(t, func(e *env) {
		r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.objects.putShare(configMap("app"), "0%", "a", "1")
		e.publish(r)
		e.writes.set(nil, func() error { return errKilled })
		e.objects.putShare(configMap("app"), "", "a", "2")
		e.settle()
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
		e.objects.putShare(configMap("app"), "0%", "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		access.grant()
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")
		e.wantCondition(failure.RefForbidden)
		access.grant(sharedSecret, sharedConfig)
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.wantCondition(ConditionHeld)
	})
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["sources"] = `
- configMap: {name: app}
- env: {path: app.env, envFrom: [{configMapRef: {name: ca, namespace: platform}}, {configMapRef: {name: app}}]}
`
		e.publish(r)
		e.objects.putShare(configMap("app"), "0%", "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\na=1\n")
		access.grant()
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "2", "app.env", "a=2\n")
		e.wantCondition(failure.RefForbidden)
		e.unpublish(r)
	})
}

// With spread, the share is applied first and then the moment.
func TestRolloutWithSpread(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.putShare(configMap("app"), "0%", "a", "1")
		r := spreadRequest(e)
		e.publish(r)
		e.objects.putShare(configMap("app"), "0%", "a", "2")
		e.objects.put(secret("db"), "p", "1") // beside it
		e.settle()
		e.wantCondition(ConditionSpreading)
		after(2 * testSpread)
		e.wantFiles(r, "a", "1", "p", "1")
		e.wantCondition(ConditionHeld)
		e.objects.putShare(configMap("app"), "100%", "a", "2")
		e.settle()
		e.wantCondition(ConditionSpreading)
		untilMoment(r)
		e.wantFiles(r, "a", "1", "p", "1")
		after(time.Second)
		e.wantFiles(r, "a", "2", "p", "1")
		e.wantCondition(ConditionCurrent)
	})
}

// TestRolloutOfATornRecord: files that a killed process left torn get the newest version, at once even with spread. Files that are only old
// after a restart don't.
func TestRolloutOfATornRecord(t *testing.T) {
	for _, isTorn := range []bool{false, true} {
		inBubble(t, func(e *env) {
			r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace", "spread", "5m")
			e.objects.putShare(configMap("app"), "0%", "a", "1")
			e.publish(r)
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
			e.restart()
			e.settle()
			e.wantFiles(r, "a", want)
			e.objects.putShare(configMap("app"), "100%", "a", "3")
			e.settle()
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
		e.objects.remove(configMap("other")) // nothing can be rendered
		e.settle()
		access.grant()
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "o", "1")
		e.objects.putShare(configMap("app"), "0%", "a", "2")
		e.objects.put(configMap("other"), "o", "1")
		e.settle()
		e.wantFiles(r, "a", "2", "o", "1", "app.env", "a=2\n")
	})
}

// TestRolloutOfWhatIsAtOnce: an optional object that is allowed again is shown at once, and a deleted one is removed at once, with what
// shares a file with it.
func TestRolloutOfWhatIsAtOnce(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant(sharedConfig)
		after(reviewTime)
		e.objects.putShare(sharedSecret, "0%", "password", "p2")
		access.grant(sharedConfig, sharedSecret)
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p2", "app.env", "CA=c1\nOWN=1\n")
	})
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", `[{join: {path: all, sources: [{configMap: {name: app, key: a}}, {configMap: {name: db, key: p, optional: true}}]}}]`)
		e.objects.putShare(configMap("app"), "0%", "a", "1")
		e.objects.put(configMap("db"), "p", "1")
		e.publish(r)
		e.objects.putShare(configMap("app"), "0%", "a", "2")
		e.settle()
		e.wantFiles(r, "all", "1\n1\n")
		e.objects.remove(configMap("db"))
		e.settle()
		e.wantFiles(r, "all", "2\n")
	})
}

// An object that many sources name is held, and the other objects are still updated: its files count once, however many sources name it.
func TestManySourcesOfAHeldObject(t *testing.T) {
	inBubble(t, func(e *env) {
		var sources, pairs []string
		for i := range 20 {
			key := fmt.Sprint("k", i)
			sources = append(sources, fmt.Sprintf("{configMap: {name: app, items: [{key: %s, path: d%d/%s}]}}", key, i, key))
			pairs = append(pairs, key, "1")
		}
		sources = append(sources, "{secret: {name: db}}")
		e.objects.putShare(configMap("app"), "0%", pairs...)
		e.objects.put(secret("db"), "p", "1")
		r := e.request("v1", "sources", "["+strings.Join(sources, ",")+"]")
		e.publish(r)
		pairs[1] = "2"
		e.objects.putShare(configMap("app"), "0%", pairs...)
		e.settle()
		e.objects.put(secret("db"), "p", "2")
		e.settle()
		if got := e.mounts.files(r.Target); got["p"] != "2" || got["d0/k0"] != "1" {
			t.Errorf("the volume shows %v", got)
		}
		e.wantCondition(ConditionHeld)
	})
}
