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

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
)

var errKilled = errors.New("killed half-way")

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
	return must.Get(os.Readlink(filepath.Join(e.mounts.Directory(r.Target), "..data")))(e)
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
				wantIs(e, "the record has %v", e.recorded(r)[app], first)
				looks := e.mounts.count("Reopen")
				after(time.Hour)
				wantIs(e, "%v looks at the files", e.mounts.count("Reopen"), looks)
				e.updateShare(app, in, "a", "3")
				e.wantFiles(r, "a", "3")
				e.wantCondition(ConditionCurrent)
				e.wantLines(0, "Volume is current again") // a change that waited was no fault
				e.updateShare(app, "0%", "a", "3")        // a version that changes no file is no change
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
			after(2 * time.Hour)
			wantIs(e, "the files were written again: %v", e.generation(r), generation)
			for of, line := range map[Condition]string{ConditionHeld: "An update is held", ConditionSpreading: "An update waits for the pod's moment"} {
				e.wantLines(map[bool]int{true: 3}[of == condition], line)
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
			if revisions := e.status().Revisions; revisions != nil {
				e.Errorf("neither has a revision: %v", revisions)
			}
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

// If there are no files, or only torn ones, nothing is held, at once even with spread.
func TestRolloutOfMissingAndTornFiles(t *testing.T) {
	inPlace := []string{"configMap", "app", "writeStrategy", "InPlace", "spread", "5m"}
	for name, test := range map[string]struct {
		attributes []string
		spoil      func(e *env, r binding.Request)
		want       string
	}{
		"a missing link is created, to what is held": {nil, func(e *env, r binding.Request) { e.removeFile(r, "a") }, "1"},
		"no files":              {nil, func(e *env, r binding.Request) { e.removeFile(r, "..data") }, "2"},
		"files that are old":    {inPlace, func(*env, binding.Request) {}, "1"},
		"files of a killed one": {inPlace, tearRecord, "2"},
	} {
		inBubbleOf(t, name, func(e *env) {
			e.objects.putShare(configMap("app"), "0%", "a", "1")
			r := e.publishNew("v1", test.attributes...)
			e.halt()
			test.spoil(e, r)
			e.objects.putShare(configMap("app"), "0%", "a", "2")
			e.resume()
			e.wantFiles(r, "a", test.want)
			if test.attributes != nil {
				e.updateShare(configMap("app"), "100%", "a", "3")
				e.wantFiles(r, "a", test.want) // it is whole again and waits for its moment
			}
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

// tearRecord makes a volume's record that of a process which was killed during a rewrite in place.
func tearRecord(e *env, r binding.Request) {
	generation := filepath.Join(e.mounts.Directory(r.Target), e.generation(r))
	e.setAttribute(generation, "record", record.Record{Shown: e.recorded(r)}.Encode()+"torn\n")
}

const withCanary = `[{versions: {path: versions.json}}, {configMap: {name: app}}, {configMap: {name: app-canary, canary: true}}, {env: {path: e, envFrom: [{configMapRef: {name: app-canary, canary: true}}, {configMapRef: {name: app}}]}}]`

var appCanary = configMap("app-canary")

// putCanary is put with the annotation of a canary; "" is none.
func (e *env) putCanary(share string, pairs ...string) {
	e.Helper()
	e.objects.locked(func() { e.objects.canaries[appCanary] = share })
	e.update(appCanary, pairs...)
}

// wantSome compares some files; "" is an empty or missing one.
func (e *env) wantSome(r binding.Request, pairs ...string) {
	e.Helper()
	files := e.mounts.files(r.Target)
	for i := 0; i < len(pairs); i += 2 {
		if files[pairs[i]] != pairs[i+1] {
			e.Errorf("%s is %q, want %q", pairs[i], files[pairs[i]], pairs[i+1])
		}
	}
}

// TestSpread: a change waits for the pod's moment, whatever comes meanwhile, and then the newest state is written.
func TestSpread(t *testing.T) {
	o := &fakeObserver{}
	inBubbleWith(t, func(opts *Options) { opts.Observer = o }, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]", "spread", "5m")
		e.wantFiles(r, "a", "1")
		first := e.objects.get(configMap("app")).Version
		e.objects.put(configMap("app"), "a", "2")
		e.update(secret("db"), "p", "x")
		moment := stage.NextMoment(r.Pod.UID, 5*time.Minute, time.Now())
		e.wantCondition(ConditionSpreading, moment.UTC().Format(time.RFC3339))
		e.wantShown(configMap("app"), first)
		after(time.Until(moment) - time.Millisecond)
		e.wantFiles(r, "a", "1")
		e.update(configMap("app"), "a", "3") // it does not delay the moment
		e.wantFiles(r, "a", "3", "p", "x")
		e.wantProblem(r, "")
		e.wantCondition(ConditionCurrent)
		if _, _, took := o.take(); len(took) != 1 || took[0] > time.Second {
			t.Errorf("the wait is part of the propagation: %v", took)
		}
		e.wantEvents()
		e.wantLines(0, "Volume is current again") // a change that waited was no fault
		e.end(r)
	})
}
