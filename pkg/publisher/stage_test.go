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
	"github.com/refvol/refvol/pkg/failure"
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

func TestStages(t *testing.T) { each(t, inBubble, stagesTests) }

var stagesTests = map[string]func(e *env){
	// A canary exists only for the pods in its share: in a new volume and in a running one. Its keys and variables win while it exists.
	"canary": func(e *env) {
		r := e.request("v1", "sources", withCanary)
		out, in := shares(r)
		stable := func() {
			e.Helper()
			e.wantSome(r, "a", "1", "b", "1", "e", "a=1\nb=1\n")
			if got := e.recordOf(r); got.Shown[appCanary].UID != "" || len(got.Absent) > 1 {
				e.Errorf("the record says %v", got)
			}
			e.wantCondition(ConditionCurrent)
		}
		replaced := func() {
			e.Helper()
			e.wantSome(r, "a", "canary", "b", "1", "e", "a=canary\nb=1\n")
			if got := e.recordOf(r); got.Shown[appCanary].UID == "" || len(got.Absent) > 0 {
				e.Errorf("the record says %v", got)
			}
			e.wantCondition(ConditionCurrent)
		}
		e.objects.put(configMap("app"), "a", "1", "b", "1")
		e.putCanary(out, "a", "canary")
		e.publish(r)
		stable()
		e.putCanary(in, "a", "canary")
		replaced()
		e.putCanary("", "a", "canary") // a request that drops the annotation
		stable()
		e.putCanary("100%", "a", "canary")
		e.remove(appCanary)
		stable()
		wantIs(e, "after its end the record has %v absent canaries", len(e.recordOf(r).Absent), 0)
		e.wantEvents()
	},
	"an invalid share, and an immutable canary, count as 0%, and are reported once for all pods of the node": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.putCanary("100%", "a", "canary")
		r, other := e.publishNew("v1", "sources", withCanary), e.request("v2", "sources", withCanary)
		e.publish(other)
		e.putCanary("ten", "a", "canary")
		e.wantSome(r, "a", "1")
		e.wantSome(other, "a", "1")
		e.putCanary("ten", "a", "canary-2")
		e.wantEvents(`InvalidCanary: ConfigMap "shop/app-canary" is a canary for no pod: the annotation refvol.dev/canary is "ten", which is not a percentage such as 10%`)
		e.unpublish(other)
		e.wantCondition(ConditionCurrent)
		e.putCanary("-1%", "a", "canary")
		e.wantEvents(`"-1%"`)
		e.putCanary("100%", "a", "canary")
		e.wantSome(r, "a", "canary")
		e.putCanary("-1%", "a", "canary") // once more, after it was right
		e.wantSome(r, "a", "1")
		e.wantEvents(`"-1%"`)
		e.putCanary("100%", "a", "canary")
		e.wantSome(r, "a", "canary")
		immutable := *e.objects.get(appCanary)
		immutable.Immutable = true
		e.objects.replace(&immutable)
		e.settle()
		e.wantSome(r, "a", "1")
		e.wantEvents("the object is immutable, so its share could not change")
	},
	"after a restart, an older answer does not show a canary again that had gone": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.putCanary("100%", "a", "canary")
		shown := e.objects.get(appCanary)
		r := e.publishNew("v1", "sources", withCanary)
		e.putCanary("0%", "a", "canary")
		absent := e.objects.get(appCanary)
		e.putCanary("0%", "a", "canary-2")
		newest := e.objects.get(appCanary)
		for _, older := range []*volume.Object{shown, absent} {
			e.halt()
			e.objects.replace(older)
			e.resume()
			e.wantSome(r, "a", "1")
			e.wantCondition(failure.VolumeUpdateFailed, "older than what the files show")
			e.objects.replace(newest)
			e.settle()
			e.wantCondition(ConditionCurrent)
		}

		e.objects.failWith(appCanary, errFault) // unknown: a change of another object must not lose what is known of the canary
		e.restart()
		e.update(configMap("app"), "a", "2")
		e.wantSome(r, "a", "2")
		wantIs(e, "the record says %v of the canary", e.recordOf(r).Absent[appCanary], newest.Version)
	},
	"the files of a canary stay until it is known what its keys hide: a newer absence is recorded meanwhile": func(e *env) {
		e.objects.put(configMap("app"), "a", "1", "b", "1")
		e.objects.put(secret("db"), "p", "1")
		e.putCanary("100%", "a", "canary")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app}}, {configMap: {name: app-canary, canary: true}}, {secret: {name: db}}]")
		e.objects.failWith(appCanary, errFault) // this holds up no other object
		e.update(secret("db"), "p", "2")
		e.wantSome(r, "a", "canary", "p", "2")
		e.objects.failWith(appCanary, nil)
		e.halt()
		e.objects.failWith(configMap("app"), errFault)
		e.putCanary("0%", "a", "canary")
		e.resume()
		e.wantSome(r, "a", "canary", "b", "1")
		e.putCanary("0%", "a", "canary-2")
		e.objects.failWith(configMap("app"), nil)
		e.update(configMap("app"), "a", "2", "b", "2")
		e.wantSome(r, "a", "2", "b", "2")
		e.wantCondition(ConditionCurrent)

		e.halt()
		e.objects.failWith(configMap("app"), errFault)
		e.putCanary("0%", "a", "canary-3")
		e.resume()
		e.putCanary("0%", "a", "canary-4")
		wantIs(e, "the record says %v", e.recordOf(r).Absent[appCanary], e.objects.get(appCanary).Version)
		e.wantSome(r, "a", "2", "b", "2")
	},
	"an invalid annotation holds every version, and is reported once": func(e *env) {
		e.objects.putShare(configMap("app"), "ten", "a", "1")
		r := e.publishNew("v1")
		e.wantCondition(ConditionCurrent)
		e.updateShare(configMap("app"), "ten", "a", "2")
		e.wantFiles(r, "a", "1")
		e.wantCondition(failure.VolumeUpdateFailed, `"ten", which is not a percentage`)
		e.objects.putShare(configMap("app"), "ten", "a", "3")
		e.wait(5 * testResync)
		e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
	},
	"a deleted object is removed at once, with what shares a file with it": func(e *env) {
		e.objects.putShare(configMap("app"), "0%", "a", "1")
		e.objects.put(configMap("db"), "p", "1")
		r := e.publishNew("v1", "sources", `[{join: {path: all, sources: [{configMap: {name: app, key: a}}, {configMap: {name: db, key: p, optional: true}}]}}]`)
		e.updateShare(configMap("app"), "0%", "a", "2")
		e.wantFiles(r, "all", "1\n1\n")
		e.remove(configMap("db"))
		e.wantFiles(r, "all", "2\n")
	},
	"a volume takes both objects when they carry the same revision, and keeps both until then, also after a restart": func(e *env) {
		e.putPair("1")
		r := e.request("v1", pairOf...)
		e.publish(r)
		e.wantFiles(r, "a", "1", "p", "1")
		e.updateRevision(configMap("app"), "r2", "a", "2")
		split := func() {
			e.Helper()
			e.wantFiles(r, "a", "1", "p", "1")
			e.wantCondition(ConditionSplit, "must carry the same refvol.dev/revision: ConfigMap shop/app carries r2, Secret shop/db carries r1")
		}
		split()
		e.resume()
		split()
		status := e.status()
		if _, isKnown := status.Revision(configMap("app")); isKnown {
			e.Error("the revision of a version that is held since before the restart is known")
		}
		e.updateRevision(secret("db"), "r2", "p", "2")
		e.wantFiles(r, "a", "2", "p", "2")
		e.wantCondition(ConditionCurrent)
		wantIs(e, "revision %v", e.status().Revisions[secret("db")], "r2")
		e.updateRevision(secret("db"), "r2", "p", "3") // the author's fault: nobody else can know
		e.wantFiles(r, "a", "2", "p", "3")
		e.updateRevision(configMap("app"), "r4 is not one", "a", "4")
		e.wantFiles(r, "a", "2", "p", "3")
		e.wantCondition(failure.VolumeUpdateFailed, "ConfigMap shop/app has an annotation refvol.dev/revision that counts as none", "carry the same")
		e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
	},
	"a publish waits until the revisions are the same, and then fails with Unavailable and an event": func(e *env) {
		e.putPair("1")
		e.objects.putRevision(secret("db"), "r2", "p", "2")
		r := e.request("v1", pairOf...)
		waiting := e.waiting(r)
		e.wantCondition(ConditionSplit, "app carries r1", "db carries r2")
		e.objects.putRevision(configMap("app"), "r2", "a", "2")
		e.wantDone(waiting)
		e.wantFiles(r, "a", "2", "p", "2")
		e.wantEvents(r.Pod.Name + ": Split")
		e.unpublish(r)
		e.objects.putRevision(configMap("app"), "", "a", "3")
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable,
			"the objects of the volume must carry the same refvol.dev/revision: ConfigMap shop/app carries none, Secret shop/db carries r2")
		e.wantNothing()
	},
	"when the kubelet sends another group, the volume is bound anew, and the revision of what it shows stays known": func(e *env) {
		e.objects.putRevision(configMap("app"), "r1", "a", "1")
		r, group := e.request("v1"), int64(2000)
		e.publish(r)
		r.FSGroup = &group
		e.publish(r)
		e.settle()
		status := e.status()
		if got, isKnown := status.Revision(configMap("app")); got != "r1" || !isKnown {
			e.Errorf("revision %q, known: %t", got, isKnown)
		}
	},
	"a version that can't be shown waits too: it is no failure before the pod's moment": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}]}}]", "spread", "1h")
		e.update(configMap("app"), "b", "2")
		e.wantCondition(ConditionSpreading)
		after(time.Hour)
		e.wantCondition(Condition(failure.RefKeyNotFound), "a")
		e.wantFiles(r, "a", "1")
	},
	"missing files are not spread, nor is a deletion with onDelete: Remove": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "p", "x")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]", "spread", "5m", "onDelete", "Remove")
		e.remove(secret("db"))
		e.wantFiles(r, "a", "1")
		e.update(configMap("app"), "a", "1b") // this one is
		e.wantFiles(r, "a", "1")

		e.halt()
		e.removeFile(r, "a")
		e.objects.put(configMap("app"), "a", "2")
		e.resume()
		e.wantFiles(r, "a", "1") // the link is back, and the change waits
		e.end(r)
	},
	"a file that must exist is restored at once, also if its object waits": func(e *env) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		e.objects.put(secret("db"), "p", "1")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}, {key: b, path: b}]}}, {secret: {name: db}}, {secret: {name: none, optional: true}}]", "spread", "1h")
		e.halt()
		e.removeFile(r, e.generation(r), "a")
		e.objects.put(app, "a", "2", "b", "2")
		e.objects.put(secret("db"), "p", "2")
		for time.Until(stage.NextMoment(r.Pod.UID, time.Hour, time.Now())) < 10*time.Minute {
			after(5 * time.Minute)
		}
		e.restart()
		e.wait(5 * time.Second)
		e.wantFiles(r, "a", "2", "b", "2", "p", "1")
		e.wantCondition(ConditionSpreading, "shop/db")
	},
}

var pairOf = []string{"sources", "[{configMap: {name: app}}, {secret: {name: db}}]", "sameRevision", "true"}

// updateRevision is putRevision, and waits until nothing happens any more.
func (e *env) updateRevision(ref volume.Ref, revision volume.Revision, pairs ...string) {
	e.Helper()
	e.objects.putRevision(ref, revision, pairs...)
	e.settle()
}

// putPair writes both objects of the pair with one revision.
func (e *env) putPair(value string) {
	e.objects.putRevision(configMap("app"), volume.Revision("r"+value), "a", value)
	e.objects.putRevision(secret("db"), volume.Revision("r"+value), "p", value)
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
