package publisher

import (
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
)

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
			e.wait(2 * testResync)
			e.wantBetween("it was read again %d times", len(e.objects.take(e.objects.readAgain, appCanary)), 1, 2)
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
