package publisher

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
)

func TestRevoked(t *testing.T) { each(t, acrossInBubble, revokedTests) }

var revokedTests = map[string]func(e *env, access *fakeAccess, r binding.Request){
	"one deleted RoleBinding can refuse several objects: they are one event, although the answers come one after another": func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant()
		access.locked(func() {
			access.delay, access.more = 10*time.Millisecond, map[volume.Ref]time.Duration{sharedConfig: 3 * time.Millisecond}
		})
		e.wait(reviewTime)
		e.wantEvents(secretRefused + "; " + configRefused)
	},
	"a failure that does not concern rights is reported at once, even while a question about a right is in flight": func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.takeAsked()
		access.locked(func() { access.delay = 5 * time.Second })
		e.takeUntil(func() bool { return len(access.takeAsked()) > 0 })
		e.remove(configMap("app"))
		e.wantEvents("RefDeleted: ")
	},
	"a right that is revoked while the publish waits for an object is valid for up to half a resync more": func(e *env, access *fakeAccess, _ binding.Request) {
		e.objects.remove(configMap("app"))
		r := e.request("v1", "sources", acrossSources, "updatePolicy", "Pinned")
		waiting := e.publishing(r)
		after(testResync)
		e.wantWaiting(waiting)
		access.grant(sharedConfig)
		withdrawn := time.Now()
		e.wantReason(<-waiting, failure.ReasonForbidden, secretRefused)
		if took := time.Since(withdrawn); took > testResync/2+10*time.Second {
			e.Errorf("it took %v", took)
		}
		e.wantNothing()
	},
	"a first refusal takes no file that has just been replaced: readers have their second with the superseded ones": func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		e.rest()
		access.grant(sharedConfig)
		access.locked(func() { access.delay, access.asked = 50*time.Millisecond, nil })
		for len(access.takeAsked()) == 0 { // by a resync
			after(10 * time.Millisecond)
			synctest.Wait()
		}
		after(40 * time.Millisecond)
		e.objects.remove(sharedSecret)
		after(pruneTime / 2) // the answer has come, while the files could not be written again yet
		synctest.Wait()
		e.wantGenerations(r, 2)
		e.confirm()
		e.wantGenerations(r, 1)
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
	},
	"a withdrawal from files that are rewritten in place does not make a change urgent that waits for the pod's moment": func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["sources"], r.Attributes["spread"], r.Attributes["writeStrategy"] = acrossSources, "1h", "InPlace"
		e.publish(r)
		e.update(configMap("app"), "a", "2")
		e.grant(access)
		if content, err := os.ReadFile(e.realPath(r, "a")); err != nil || string(content) != "1" {
			e.Errorf("the file has %q, %v", content, err)
		}
		e.wantProblem(r, secretRefused)
	},
	"a publish whose question is in flight when the plugin stops waits for the answer": func(e *env, access *fakeAccess, r binding.Request) {
		access.locked(func() { access.delay = graceTime / 2 })
		waiting := e.waiting(r)
		e.p.StopWaiting()
		e.wantDone(waiting)
	},
	// A new object comes into an expanded text although another object of the text was not known at first. While it is not, the record
	// does not name the new object, as the text lacks it.
	"a new object beside an unknown one": func(e *env, access *fakeAccess, r binding.Request) {
		e.objects.put(configMap("app"), "a", "$(NEW)$(PASSWORD)")
		r.Attributes["sources"] = `[{expand: {path: text, configMap: {name: app, key: a}, env: [
			{name: NEW, valueFrom: {configMapKeyRef: {name: new, key: k, optional: true}}},
			{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password, namespace: platform}}}]}}]`
		e.publish(r)
		e.wantFiles(r, "text", "$(NEW)p1")
		e.halt()
		e.objects.put(configMap("new"), "k", "1")
		access.locked(func() { access.delay = time.Second })
		e.resume()
		e.wantFiles(r, "text", "$(NEW)p1")
		if shown := e.recorded(r)[configMap("new")]; shown.UID != "" {
			e.Errorf("the record has %v of an object that is in no file", shown)
		}
		e.wait(2 * time.Second)
		e.wantFiles(r, "text", "1p1")
	},
	"an env file that was removed with a refused object comes back without it, although its other object is held": func(e *env, access *fakeAccess, r binding.Request) {
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
	},
	"a withdrawal does not wait for a share, nor does what shares a file with it": func(e *env, access *fakeAccess, r binding.Request) {
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
	},
	"files that a refusal removes have no receipts, and the other files keep theirs": func(e *env, access *fakeAccess, r binding.Request) {
		opens := fakenode.NewOpens()
		e.opts.Opens = opens
		e.restart()
		e.publish(r)
		e.read(r, opens, "a")
		e.wantOpened(configMap("app"), opened.Yes)
		e.writes.set(func() error { return errFault }, nil) // so that no update can succeed
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return len(e.status().Withdrawn) > 0 })
		e.rest()
		e.wantOpened(configMap("app"), opened.Yes)
		if s := e.status(); s.OpenState(sharedSecret) != opened.Unknown {
			e.Errorf("the refused object is opened: %s", s.OpenState(sharedSecret))
		}
		e.writes.set(nil, nil)
		e.read(r, opens, "app.env")
		e.wantOpened(sharedConfig, opened.Yes)
		e.wantNoErrors()
	},
	"an error of the review is not a refusal: the publish waits and can be retried": func(e *env, access *fakeAccess, r binding.Request) {
		access.failWith(errReview)
		waiting := e.waiting(r)
		after(30 * time.Second)
		e.wantWaiting(waiting)
		e.wantBetween("%d questions in 30 s", len(access.takeAsked()), 0, 2*12)
		access.failWith(nil)
		e.wantDone(waiting)
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.unpublish(r)

		access.failWith(errReview)
		after(consentAge)
		begin := time.Now()
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable,
			"access could not be reviewed: the API server is away")
		e.wantTook(begin, testWait)
		e.wantNothing()
	},
	"after a restart nothing is written before the rights were reviewed, and without --cross-namespace files of other namespaces are removed": func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.failWith(errReview)
		e.restart()
		e.update(sharedSecret, "password", "p2")
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.opts.CrossNamespace = false
		e.restart()
		e.confirm()
		e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")
		e.wantProblem(r, "sources[1].secret.namespace: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)")
		e.publish(r)
		e.end(r)
	},
	"a superseded generation may still have a file of the object": func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return e.generations(r) == 2 })
		e.failReopen(errFault) // so that nothing can be pruned
		after(10 * pruneTime)
		e.wantWithdrawn()
		e.wantGenerations(r, 2)
		e.failReopen(nil)
		e.wait(reviewTime)
		e.wantWithdrawn(sharedSecret)
	},
	"an object that no file shows is withdrawn as soon as it is refused": func(e *env, access *fakeAccess, r binding.Request) {
		e.objects.remove(sharedSecret) // it is optional
		e.publish(r)
		e.rest()
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return e.status().Condition == failure.RefForbidden })
		e.wantWithdrawn(sharedSecret)
	},
	"if it is not known what the files show, a refusal is confirmed too": func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		e.restartUnread()
		access.grant()
		e.publish(r)
		e.mounts.failAt("Reopen", errFault)
		e.settle()
		e.mounts.failAt("Reopen", nil)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.end(r)
	},
	"an object of another namespace without keys has no file: files of the pod's own namespace stay when it is refused": func(e *env, access *fakeAccess, r binding.Request) {
		e.objects.put(sharedSecret)
		r.Attributes["sources"] = "[{configMap: {name: app}}, {secret: {name: db, namespace: platform}}]"
		e.publish(r)
		e.objects.remove(configMap("app"))
		access.grant()
		e.restart()
		e.wait(reviewTime)
		e.wantFiles(r, "a", "1")
		if shown := e.status().Shown; shown[configMap("app")].UID == "" || shown[sharedSecret].UID != "" {
			e.Errorf("the status says %v", shown)
		}
		e.end(r)
	},
	// A withdrawal is not told while the files can't be changed, nor after a write that has created them again, but when a later try succeeds.
	"a failed withdrawal is not told: a write that failed has put the file there again": func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["writeStrategy"] = "InPlace"
		e.publish(r)
		access.grant(sharedConfig)
		e.wait(reviewTime + 2*pruneTime)
		e.wantWithdrawn(sharedSecret)
		e.writes.set(nil, func() error { return errFault })
		e.grant(access, sharedConfig, sharedSecret)
		e.wantWithdrawn()
		e.failReopen(errFault)
		access.grant(sharedConfig)
		e.wait(2 * reviewTime)
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.wantWithdrawn()
		e.failReopen(nil)
		e.wait(reviewTime)
		e.wantWithdrawn(sharedSecret)
		e.wantFiles(r, "a", "1", "password", "", "app.env", "CA=c1\nOWN=1\n")
	},
}

// takeUntil waits, second by second, until done returns true.
func (e *env) takeUntil(done func() bool) {
	e.Helper()
	for range 300 {
		synctest.Wait()
		if done() {
			return
		}
		after(time.Second)
	}
	e.Fatal("it never came")
}

// Whatever prevents updates of a volume must not keep files whose right was revoked, also after a restart, when it is not known of what the
// files were made. The rest stays as it was. An env file with a revoked part is removed, until an update is possible. An object that can't be
// read prevents no update of the others.
func TestRevokedWhileUpdatesFail(t *testing.T) {
	app := configMap("app")
	noRestart := func(*env, binding.Request) {}
	restart := func(e *env, _ binding.Request) { e.restart() }
	takeOver := func(e *env, r binding.Request) { e.restartUnread(); e.publish(r) }
	own, both := []string{"a", "1"}, []string{"a", "1", "app.env", "OWN=1\n"}
	for name, test := range map[string]struct {
		// fail makes updates fail. restart may end the process and start the next one.
		fail    func(e *env)
		restart func(e *env, r binding.Request)
		files   []string
	}{
		"own object deleted":                {func(e *env) { e.objects.remove(app) }, noRestart, own},
		"own object forbidden":              {func(e *env) { e.objects.failWith(app, errForbiddenObject) }, noRestart, both},
		"own object too large":              {func(e *env) { e.objects.put(app, "a", pages(300)) }, noRestart, own},
		"own object unknown, a restart":     {func(e *env) { e.objects.failWith(app, manager.ErrNotSynced) }, restart, both},
		"own object deleted, and a publish": {func(e *env) { e.objects.remove(app) }, takeOver, own},
		"the size limit was lowered": {func(e *env) {
			e.objects.put(app, "a", pages(3))
			e.update(sharedConfig, "CA", pages(1))
			e.opts.MaxVolumeSize = 2 * pageSize
		}, restart, []string{"a", pages(3), "app.env", "OWN=1\n"}}, // this is smaller
		"the size limit was lowered, and an own object grew": {func(e *env) {
			e.update(app, "a", pages(3))
			e.opts.MaxVolumeSize = 2 * pageSize
			e.halt()
			e.objects.put(app, "a", pages(9))
		}, restart, []string{"a", pages(3)}},
	} {
		acrossInBubbleOf(t, name, func(e *env, access *fakeAccess, r binding.Request) {
			e.publish(r)
			test.fail(e)
			test.restart(e, r)
			e.grant(access)
			e.wantFiles(r, test.files...)
			e.wait(pruneTime)
			e.wantGenerations(r, 1)
			e.wantProblem(r, secretRefused)
			e.wantWithdrawn(sharedSecret, sharedConfig)

			e.objects.failWith(app, nil)
			e.objects.put(app, "a", "9")
			e.wait(2 * testResync)
			e.wantFiles(r, "a", "9", "app.env", "OWN=1\n")
			e.end(r)
		})
	}
}
