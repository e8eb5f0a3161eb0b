package publisher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

const testSpread = 5 * time.Minute

func spreadRequest(e *env, attributes ...string) Request {
	return e.request("v1", append([]string{"sources", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]", "spread", "5m"}, attributes...)...)
}

// untilMoment waits until just before the pod's moment.
func untilMoment(r Request) {
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
	if lines := e.logs.with("Volume is current again"); len(lines) > 0 {
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
		e.wantFiles(r, "a", "2")
		e.unpublish(r)
		e.wantNothing()
	})
}

// TestAWithdrawalIsNotSpread: files that the pod may no longer read are removed at once, and the change beside them continues to wait. What
// it may read again is shown at once.
func TestAWithdrawalIsNotSpread(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		r.Attributes["sources"], r.Attributes["spread"] = acrossSources, "1h"
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		access.grant()
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, secretRefused)
		access.grant(sharedSecret, sharedConfig)
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "2", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.unpublish(r)
	})
}

// TestSpreadMoments: pods' moments are spread over the window, and a pod has the same moment in each window.
func TestSpreadMoments(t *testing.T) {
	const pods, parts = 1000, 10
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var counts [parts]int
	for i := range pods {
		pod := volume.Pod{UID: types.UID(fmt.Sprintf("0c3f2a-%d", i))}
		at := spreadMoment(pod, testSpread, start)
		if wait := at.Sub(start); wait <= 0 || wait > testSpread {
			t.Fatalf("the moment is %s after the change", wait)
		}
		if next := spreadMoment(pod, testSpread, at); next.Sub(at) != testSpread {
			t.Fatalf("the next moment is %s later", next.Sub(at))
		}
		if again := spreadMoment(pod, testSpread, at.Add(-1)); !again.Equal(at) {
			t.Fatalf("just before its moment it is %s", again.Sub(at))
		}
		counts[int(at.Sub(start)-1)*parts/int(testSpread)]++
	}
	for part, n := range counts {
		if n < pods/parts*7/10 || n > pods/parts*13/10 {
			t.Errorf("%d of %d pods in part %d of %d", n, pods, part, parts)
		}
	}
}
