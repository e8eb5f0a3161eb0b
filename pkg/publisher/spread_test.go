package publisher

import (
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
)

func spreadMoment(pod volume.Pod, window time.Duration, after time.Time) time.Time {
	return stage.NextMoment(pod.UID, window, after)
}

// farFromMoment waits until the moment of a pod with spread: 1h is more than ten minutes away.
func farFromMoment(r binding.Request) {
	for time.Until(spreadMoment(r.Pod, time.Hour, time.Now())) < 10*time.Minute {
		after(5 * time.Minute)
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
		moment := spreadMoment(r.Pod, 5*time.Minute, time.Now())
		if s := e.status(); s.Condition != ConditionSpreading || s.Shown[configMap("app")] != first ||
			!strings.Contains(s.Reason, moment.UTC().Format(time.RFC3339)) {
			t.Errorf("%s, %s, shown %v; the moment is %s", s.Condition, s.Reason, s.Shown, moment)
		}
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
		e.wantNoRecovery()
		e.end(r)
	})
}

// wantNoRecovery fails the test if the log says that a volume is current again. A change that waited was no fault.
func (e *env) wantNoRecovery() {
	e.Helper()
	e.wantLines(0, "Volume is current again")
}

// TestWhatIsNotSpread: missing files, and a deletion with onDelete: Remove.
func TestWhatIsNotSpread(t *testing.T) {
	inBubble(t, func(e *env) {
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
	})
}

// TestAWithdrawalIsNotSpread: files that the pod may no longer read are removed at once, and the change beside them continues to wait. A
// required object that the pod may read again is shown at once, and an optional one at the pod's moment.
func TestAWithdrawalIsNotSpread(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["sources"], r.Attributes["spread"] = acrossSources, "1h"
		e.publish(r)
		e.update(configMap("app"), "a", "2")
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.grant(access)
		e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")
		e.wantProblem(r, secretRefused)
		e.grant(access, sharedSecret, sharedConfig)
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
		e.wait(2 * time.Hour)
		e.wantFiles(r, "a", "2", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
	})
}

// TestAMissingItemIsTakenFromTheNewestVersion: a file that must exist is restored at once, also if its object waits.
func TestAMissingItemIsTakenFromTheNewestVersion(t *testing.T) {
	inBubble(t, func(e *env) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		e.objects.put(secret("db"), "p", "1")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}, {key: b, path: b}]}}, {secret: {name: db}}]", "spread", "1h")
		e.halt()
		e.removeFile(r, e.generation(r), "a")
		e.objects.put(app, "a", "2", "b", "2")
		e.objects.put(secret("db"), "p", "2")
		farFromMoment(r)
		e.restart()
		e.wait(5 * time.Second)
		e.wantFiles(r, "a", "2", "b", "2", "p", "1")
		e.wantCondition(ConditionSpreading, "shop/db")
	})
}
