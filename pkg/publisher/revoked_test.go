package publisher

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// reviewTime is longer than a change of a right may take to have an effect: a resync starts within an interval, at a random moment of the
// next one, and a refusal must be confirmed.
const reviewTime = 2*testResync + 2*refusalTime

// confirm waits until a first refusal has been confirmed.
func (e *env) confirm() {
	e.settle()
	e.wait(refusalTime)
}

// One deleted RoleBinding can refuse several objects. They are reported in one event, although the answers come one after another.
func TestRefusalsAtTheSameTimeAreOneEvent(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant()
		access.locked(func() {
			access.delay, access.more = 10*time.Millisecond, map[volume.Ref]time.Duration{sharedConfig: 3 * time.Millisecond}
		})
		e.wait(reviewTime)
		e.wantEvents(secretRefused + "; " + configRefused)
	})
}

// A failure that does not concern rights is reported at once, even while a question about a right is in flight.
func TestEventsDuringAReview(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.takeAsked()
		access.locked(func() { access.delay = 5 * time.Second })
		e.takeUntil(func() bool { return len(access.takeAsked()) > 0 })
		e.remove(configMap("app"))
		e.wantEvents("RefDeleted: ")
	})
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
		"own object unknown":                {func(e *env) { e.objects.failWith(app, manager.ErrNotSynced) }, noRestart, both},
		"own object forbidden":              {func(e *env) { e.objects.failWith(app, errForbiddenObject) }, noRestart, both},
		"own object too large":              {func(e *env) { e.objects.put(app, "a", pages(300)) }, noRestart, own},
		"own object deleted, a restart":     {func(e *env) { e.objects.remove(app) }, restart, own},
		"own object unknown, a restart":     {func(e *env) { e.objects.failWith(app, manager.ErrNotSynced) }, restart, both},
		"own object forbidden, a restart":   {func(e *env) { e.objects.failWith(app, errForbiddenObject) }, restart, both},
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

var errForbiddenObject = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "app", errors.New("no"))

// A right that was granted when a publish began, and revoked while it waits for an object, is valid for up to half a resync more.
func TestRevokedWhileAPublishWaits(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, _ binding.Request) {
		e.objects.remove(configMap("app"))
		r := e.request("v1", "sources", acrossSources, "updatePolicy", "Pinned")
		waiting := e.publishing(r)
		after(testResync)
		e.wantWaiting(waiting)
		access.grant(sharedConfig)
		withdrawn := time.Now()
		e.wantReason(<-waiting, failure.ReasonForbidden, secretRefused)
		if took := time.Since(withdrawn); took > testResync/2+10*time.Second {
			t.Errorf("it took %v", took)
		}
		e.wantNothing()
	})
}

// A first refusal takes no file of an object whose files have just been replaced: readers have their second with the superseded ones.
func TestASuspicionLeavesSupersededFiles(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
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
	})
}
