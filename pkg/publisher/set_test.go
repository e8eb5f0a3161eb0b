package publisher

import (
	"testing"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

const pairOf = "[{configMap: {name: app}}, {secret: {name: db}}]"

// putRevision is put with the annotation of a set.
func (o *fakeObjects) putRevision(ref volume.Ref, revision volume.Revision, pairs ...string) {
	o.mu.Lock()
	o.revisions[ref] = revision
	o.mu.Unlock()
	o.put(ref, pairs...)
}

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

func (e *env) setRequest() binding.Request {
	e.Helper()
	return e.request("v1", "sources", pairOf, "sameRevision", "true")
}

// TestSet: a volume takes both objects when they carry the same revision, and keeps both until then, also after a restart.
func TestSet(t *testing.T) {
	inBubble(t, func(e *env) {
		e.putPair("1")
		r := e.setRequest()
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
			t.Error("the revision of a version that is held since before the restart is known")
		}
		e.updateRevision(secret("db"), "r2", "p", "2")
		e.wantFiles(r, "a", "2", "p", "2")
		e.wantCondition(ConditionCurrent)
		if got := e.status().Revisions[secret("db")]; got != "r2" {
			t.Errorf("revision %q", got)
		}
		e.updateRevision(secret("db"), "r2", "p", "3") // the author's fault: nobody else can know
		e.wantFiles(r, "a", "2", "p", "3")
		e.updateRevision(configMap("app"), "r4 is not one", "a", "4")
		e.wantFiles(r, "a", "2", "p", "3")
		e.wantCondition(failure.VolumeUpdateFailed, "ConfigMap shop/app has an annotation refvol.dev/revision that counts as none", "carry the same")
		e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
	})
}

// TestSetOfANewVolume: a publish waits until the revisions are the same. Then it fails with Unavailable, and the pod gets an event.
func TestSetOfANewVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.putPair("1")
		e.objects.putRevision(secret("db"), "r2", "p", "2")
		r := e.setRequest()
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
	})
}

// TestSetOutsideAShare: the whole set waits.
func TestSetOutsideAShare(t *testing.T) {
	inBubble(t, func(e *env) {
		e.putPair("1")
		r := e.setRequest()
		e.publish(r)
		e.objects.rollouts[configMap("app")] = "0%"
		e.putPair("2")
		e.settle()
		e.wantFiles(r, "a", "1", "p", "1")
		e.wantCondition(ConditionHeld, "shop/app has a newer version for 0%", "shop/db waits for the other objects of its set")
		e.resume()
		e.wantFiles(r, "a", "1", "p", "1")
		e.objects.rollouts[configMap("app")] = ""
		e.putPair("3")
		e.settle()
		e.wantFiles(r, "a", "3", "p", "3")
		e.wantCondition(ConditionCurrent)
	})
}

// TestSetAndARefusal: a refused object goes although the others wait. What shows both goes as a whole, and comes back with the whole set.
func TestSetAndARefusal(t *testing.T) {
	a := &fakeAccess{granted: map[volume.Ref]bool{}}
	inBubbleWith(t, func(o *Options) { o.CrossNamespace, o.Reviews = true, a.reviews() }, func(e *env) {
		app, more, other := configMap("app"), configMap("more"), volume.Ref{Kind: volume.Secret, Namespace: "other", Name: "db"}
		put := func(ref volume.Ref, revision volume.Revision, value string) {
			e.objects.putRevision(ref, revision, "K_"+ref.Name, value)
		}
		put(app, "r1", "1")
		put(more, "r1", "1")
		put(other, "r1", "1")
		a.locked(func() { a.granted[other] = true })
		r := e.request("v1", "sameRevision", "true", "sources", `[{configMap: {name: app}}, {configMap: {name: more}}, {secret: {name: db, namespace: other}},
			{env: {path: app.env, envFrom: [{configMapRef: {name: app}}, {secretRef: {name: db, namespace: other}}]}}]`)
		e.publish(r)
		put(app, "r2", "2")
		e.settle()
		e.wantCondition(ConditionSplit)
		a.locked(func() { a.granted[other] = false })
		e.wait(3 * testResync)
		files := e.mounts.files(r.Target)
		if _, isThere := files["K_db"]; isThere || files["app.env"] != "" || files["K_app"] != "1" {
			t.Errorf("files of a refused object: %v", files)
		}
		a.locked(func() { a.granted[other] = true })
		put(other, "r2", "2")
		put(more, "r2", "2")
		e.wait(3 * testResync)
		files = e.mounts.files(r.Target)
		if files["K_app"] != "2" || files["K_db"] != "2" || files["app.env"] == "" {
			t.Errorf("files of the whole set: %v", files)
		}
	})
}

// TestRevisionOfAnotherRequest: when the kubelet sends another group, the volume is bound anew, and the revision of what it shows stays known.
func TestRevisionOfAnotherRequest(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.putRevision(configMap("app"), "r1", "a", "1")
		r, group := e.request("v1"), int64(2000)
		e.publish(r)
		r.FSGroup = &group
		e.publish(r)
		e.settle()
		status := e.status()
		if got, isKnown := status.Revision(configMap("app")); got != "r1" || !isKnown {
			t.Errorf("revision %q, known: %t", got, isKnown)
		}
	})
}
