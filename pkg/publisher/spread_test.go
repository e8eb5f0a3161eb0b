package publisher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
)

const testSpread = 5 * time.Minute

func spreadRequest(e *env, attributes ...string) binding.Request {
	return e.request("v1", append([]string{"sources", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]", "spread", "5m"}, attributes...)...)
}

func spreadMoment(pod volume.Pod, window time.Duration, after time.Time) time.Time {
	return stage.NextMoment(pod.UID, window, after)
}

// untilMoment waits until just before the pod's moment.
func untilMoment(r binding.Request) {
	after(time.Until(spreadMoment(r.Pod, testSpread, time.Now())) - time.Millisecond)
}

// TestSpread: a change waits for the pod's moment, whatever comes meanwhile, and then the newest state is written.
func TestSpread(t *testing.T) {
	o := &fakeObserver{}
	inStoppedBubble(t, func(opts *Options) { opts.Observer = o }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		r := spreadRequest(e)
		e.publish(r)
		e.wantFiles(r, "a", "1")
		first := e.objects.get(configMap("app")).Version
		e.objects.put(configMap("app"), "a", "2")
		e.objects.put(secret("db"), "p", "x")
		e.settle()
		moment := spreadMoment(r.Pod, testSpread, time.Now())
		if s := e.status(); s.Condition != ConditionSpreading || s.Shown[configMap("app")] != first ||
			!strings.Contains(s.Reason, moment.UTC().Format(time.RFC3339)) {
			t.Errorf("%s, %s, shown %v; the moment is %s", s.Condition, s.Reason, s.Shown, moment)
		}
		untilMoment(r)
		e.wantFiles(r, "a", "1")
		e.objects.put(configMap("app"), "a", "3") // it does not delay the moment
		e.settle()
		e.wantFiles(r, "a", "3", "p", "x")
		e.wantProblem(r, "")
		if s := e.status(); s.Condition != ConditionCurrent {
			t.Error(s.Condition)
		}
		if _, _, took := o.take(); len(took) != 1 || took[0] > time.Second {
			t.Errorf("the wait is part of the propagation: %v", took)
		}
		e.wantEvents()
		e.wantNoRecovery()
		e.unpublish(r)
		e.wantNothing()
	})
}

// wantNoRecovery fails the test if the log says that a volume is current again. A change that waited was no fault.
func (e *env) wantNoRecovery() {
	e.Helper()
	if lines := e.logs.With("Volume is current again"); len(lines) > 0 {
		e.Errorf("the log has %q", lines)
	}
}

// TestSpreadOfARevert: a change that is reverted before the moment is not written.
func TestSpreadOfARevert(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := spreadRequest(e)
		e.publish(r)
		generation, err := os.Readlink(filepath.Join(e.mounts.directory(r.Target), "..data"))
		if err != nil {
			t.Fatal(err)
		}
		e.objects.put(configMap("app"), "a", "bad")
		e.settle()
		e.objects.put(configMap("app"), "a", "1")
		e.settle()
		if s := e.status(); s.Condition != ConditionCurrent || s.Shown[configMap("app")] != e.objects.get(configMap("app")).Version {
			t.Errorf("%s, %v", s.Condition, s.Shown)
		}
		after(2 * testSpread)
		now, err := os.Readlink(filepath.Join(e.mounts.directory(r.Target), "..data"))
		if err != nil || now != generation {
			t.Errorf("the files were written again: %s, %s, %v", generation, now, err)
		}
		e.unpublish(r)
	})
}

// TestSpreadSurvivesARestart: the moment is the same, and nothing older or torn is shown meanwhile.
func TestSpreadSurvivesARestart(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := spreadRequest(e, "writeStrategy", strategy)
				e.publish(r)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "1")
				e.restart()
				e.settle()
				e.wantFiles(r, "a", "1")
				untilMoment(r)
				e.wantFiles(r, "a", "1")
				after(time.Second)
				e.wantFiles(r, "a", "2")
				e.wantProblem(r, "")
				e.unpublish(r)
			})
		})
	}
}

// TestWhatIsNotSpread: missing files, and a deletion with onDelete: Remove.
func TestWhatIsNotSpread(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "p", "x")
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]", "spread", "5m", "onDelete", "Remove")
		e.publish(r)
		e.objects.remove(secret("db"))
		e.settle()
		e.wantFiles(r, "a", "1")
		e.objects.put(configMap("app"), "a", "1b") // this one is
		e.settle()
		e.wantFiles(r, "a", "1")

		e.halt()
		if err := os.Remove(filepath.Join(e.mounts.directory(r.Target), "a")); err != nil {
			t.Fatal(err)
		}
		e.objects.put(configMap("app"), "a", "2")
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "1") // the link is back, and the change waits
		e.unpublish(r)
		e.wantNothing()
	})
}

// TestAWithdrawalIsNotSpread: files that the pod may no longer read are removed at once, and the change beside them continues to wait. A
// required object that the pod may read again is shown at once, and an optional one at the pod's moment.
func TestAWithdrawalIsNotSpread(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["sources"], r.Attributes["spread"] = acrossSources, "1h"
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		access.grant()
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")
		e.wantProblem(r, secretRefused)
		access.grant(sharedSecret, sharedConfig)
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
		after(2 * time.Hour)
		e.settle()
		e.wantFiles(r, "a", "2", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.unpublish(r)
	})
}

// TestAMissedMomentThatIsRetried: a change that cannot be written at the pod's moment, because the node is full, and is retried, must
// not make a later change appear at once.
func TestAMissedMomentThatIsRetried(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := spreadRequest(e)
		e.publish(r)
		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(configMap("app"), "a", "2")
		after(2 * testSpread)
		e.settle()
		e.wantFiles(r, "a", "1")
		after(3 * time.Hour)
		e.writes.set(nil, nil)
		after(-time.Until(spreadMoment(r.Pod, testSpread, time.Now())) / 2)
		e.objects.put(configMap("app"), "a", "3") // a later change
		e.settle()
		after(retryMax)
		e.settle()
		e.wantFiles(r, "a", "1")
	})
}

// The same with a node that is full: the later, smaller change is shown at once.
func TestAMissedMomentOnAFullNode(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("large"), "a", pages(150))
		e.publish(e.request("other", "configMap", "large"))
		e.objects.put(configMap("app"), "a", "1")
		r := spreadRequest(e)
		e.publish(r)
		e.objects.put(configMap("app"), "a", pages(150))
		after(2 * testSpread) // its moment passes, and the node is full
		e.settle()
		e.wantFiles(r, "a", "1")
		after(3 * time.Hour)
		e.settle()
		for time.Until(spreadMoment(r.Pod, testSpread, time.Now())) < time.Minute {
			after(30 * time.Second)
		}
		moment := spreadMoment(r.Pod, testSpread, time.Now())
		e.objects.put(configMap("app"), "a", "3")
		e.settle()
		after(retryMax)
		e.settle()
		if got := e.mounts.files(r.Target)["a"]; got == "3" {
			t.Errorf("the later change is shown at once, and the pod's moment is in %s", time.Until(moment))
		}
	})
}

// TestARestartDecidesTheSame: an optional object that is allowed again is shown at once, also if the plugin restarted meanwhile.
func TestARestartDecidesTheSame(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprint(restarts), func(t *testing.T) {
			acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
				e.publish(r)
				access.grant(sharedConfig)
				after(reviewTime)
				e.settle()
				e.objects.putShare(sharedSecret, "0%", "password", "p2")
				access.grant(sharedConfig, sharedSecret)
				if restarts {
					e.restart()
				}
				after(reviewTime)
				e.settle()
				e.wantFiles(r, "a", "1", "password", "p2", "app.env", "CA=c1\nOWN=1\n")
			})
		})
	}
}

// TestAMissingItemIsTakenFromTheNewestVersion: a file that must exist is restored at once, also if its object waits.
func TestAMissingItemIsTakenFromTheNewestVersion(t *testing.T) {
	inBubble(t, func(e *env) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		e.objects.put(secret("db"), "p", "1")
		r := e.request("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}, {key: b, path: b}]}}, {secret: {name: db}}]", "spread", "1h")
		e.publish(r)
		e.halt()
		if err := os.Remove(filepath.Join(e.mounts.directory(r.Target), e.generation(r), "a")); err != nil {
			t.Fatal(err)
		}
		e.objects.put(app, "a", "2", "b", "2")
		e.objects.put(secret("db"), "p", "2")
		for time.Until(spreadMoment(r.Pod, time.Hour, time.Now())) < 10*time.Minute {
			after(5 * time.Minute)
		}
		e.restart()
		after(5 * time.Second)
		e.settle()
		e.wantFiles(r, "a", "2", "b", "2", "p", "1")
		e.wantCondition(ConditionSpreading, "shop/db")
		e.unpublish(r)
	})
}
