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
	after(refusalTime)
	e.settle()
}

// A single refusal is not a revocation: a server that has just started refuses everybody.
func TestARefusalIsConfirmed(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		files := []string{"a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n"}
		for range 3 {
			e.takeUntil(func() bool { return len(access.takeAsked()) > 0 }) // by a resync
			access.grant()
			e.takeUntil(func() bool { return len(access.takeAsked()) > 0 })
			access.grant(sharedSecret, sharedConfig)
			e.confirm()
			e.wantFiles(r, files...)
		}
		e.objects.put(sharedSecret, "password", "p2")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p2", "app.env", "CA=c1\nOWN=1\n")
		e.wantEvents()

		// Nor is one after a restart, but nothing is written before that is clear.
		access.grant()
		e.restart()
		e.settle()
		e.objects.put(sharedSecret, "password", "p3")
		access.grant(sharedSecret, sharedConfig)
		after(refusalTime / 2)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p2", "app.env", "CA=c1\nOWN=1\n")
		after(refusalTime)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p3", "app.env", "CA=c1\nOWN=1\n")
		e.wantEvents()
	})
}

// One deleted RoleBinding can refuse several objects. They are reported in one event, although the answers come one after another.
func TestRefusalsAtTheSameTimeAreOneEvent(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant()
		access.set(func() {
			access.delay, access.more = 10*time.Millisecond, map[volume.Ref]time.Duration{sharedConfig: 3 * time.Millisecond}
		})
		after(reviewTime)
		e.settle()
		e.wantEvents(secretRefused + "; " + configRefused)
	})
}

// A failure that does not concern rights is reported at once, even while a question about a right is in flight.
func TestEventsDuringAReview(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.takeAsked()
		access.set(func() { access.delay = 5 * time.Second })
		e.takeUntil(func() bool { return len(access.takeAsked()) > 0 })
		e.objects.remove(configMap("app"))
		e.settle()
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

// Whatever prevents updates of a volume must not keep files whose right was revoked, and the rest stays as it was. An env file with a
// revoked part is removed, until an update is possible. An object that can't be read prevents no update of the others.
func TestRevokedWhileUpdatesFail(t *testing.T) {
	for name, test := range map[string]struct {
		fail  func(e *env)
		files []string
		// restart restarts the plugin in between.
		restart bool
	}{
		"own object deleted":              {fail: func(e *env) { e.objects.remove(configMap("app")) }, files: []string{"a", "1"}},
		"own object unknown":              {fail: func(e *env) { e.objects.failWith(configMap("app"), manager.ErrNotSynced) }, files: []string{"a", "1", "app.env", "OWN=1\n"}},
		"own object forbidden":            {fail: func(e *env) { e.objects.failWith(configMap("app"), errForbiddenObject) }, files: []string{"a", "1", "app.env", "OWN=1\n"}},
		"own object too large":            {fail: func(e *env) { e.objects.put(configMap("app"), "a", pages(300)) }, files: []string{"a", "1"}},
		"own object deleted, a restart":   {fail: func(e *env) { e.objects.remove(configMap("app")) }, files: []string{"a", "1"}, restart: true},
		"own object forbidden, a restart": {fail: func(e *env) { e.objects.failWith(configMap("app"), errForbiddenObject) }, files: []string{"a", "1", "app.env", "OWN=1\n"}, restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
				e.publish(r)
				test.fail(e)
				access.grant()
				if test.restart {
					e.restart()
				}
				after(reviewTime)
				e.settle()
				e.wantFiles(r, test.files...)
				e.wantProblem(r, secretRefused)
				after(2 * time.Second)
				if n := e.generations(r); n != 1 {
					t.Errorf("%d generations", n)
				}
				e.objects.failWith(configMap("app"), nil)
				e.objects.put(configMap("app"), "a", "9")
				e.settle()
				e.wantFiles(r, "a", "9", "app.env", "OWN=1\n")
				e.unpublish(r)
				e.wantNothing()
			})
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
		access.set(func() { access.delay, access.asked = 50*time.Millisecond, nil })
		for len(access.takeAsked()) == 0 { // by a resync
			after(10 * time.Millisecond)
			synctest.Wait()
		}
		after(40 * time.Millisecond)
		e.objects.remove(sharedSecret)
		after(pruneTime / 2) // the answer has come, while the files could not be written again yet
		synctest.Wait()
		if n := e.generations(r); n != 2 {
			t.Errorf("%d generations, want the superseded one too", n)
		}
		e.confirm()
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations after the second", n)
		}
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
	})
}
