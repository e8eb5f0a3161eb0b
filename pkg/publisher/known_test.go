package publisher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/receipts"
)

// TestAFailedReviewEndsNoWatch: an error is not a refusal. While reviews fail, the objects that a mounted volume was allowed to read stay
// registered. Only a confirmed no unregisters one.
func TestAFailedReviewEndsNoWatch(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.failWith(errReview)
		after(3 * testResync)
		e.settle()
		for key, refs := range e.objects.registrations() {
			if len(refs) != 3 {
				t.Errorf("while reviews fail, %s has registered only %v", key, refs)
			}
		}
		e.objects.put(configMap("app"), "a", "2") // the pod needs no right to its own objects
		e.settle()
		e.wantFiles(r, "a", "2", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		access.failWith(nil)
		access.grant(sharedConfig)
		after(3*testResync + reviewTime)
		e.settle()
		for key, refs := range e.objects.registrations() {
			if len(refs) != 2 {
				t.Errorf("after a refusal, %s has registered %v", key, refs)
			}
		}
	})
}

// TestAFailedReviewEndsNoWatchOfPods is the same with pods' identity.
func TestAFailedReviewEndsNoWatchOfPods(t *testing.T) {
	asPods(t, func(e *env, _ *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		access.failWith(errReview)
		after(3 * testResync)
		e.settle()
		for key, refs := range e.objects.registrations() {
			if len(refs) != 2 {
				t.Errorf("while reviews fail, %s has registered only %v", key, refs)
			}
		}
	})
}

// TestASuspicionEndsNoWatch: a server that has just started says no once.
func TestASuspicionEndsNoWatch(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.takeAsked()
		access.grant()
		e.takeUntil(func() bool { return len(access.takeAsked()) > 0 })
		access.grant(sharedSecret, sharedConfig)
		e.settle()
		for key, refs := range e.objects.registrations() {
			if len(refs) != 3 {
				t.Errorf("a suspected refusal: %s has registered only %v", key, refs)
			}
		}
	})
}

// errKMS is what the manager returns for an object that the API server can't decrypt.
var errKMS = fmt.Errorf("Secret \"shop/db\": %w: %w", manager.ErrNotSynced, apierrors.NewInternalError(errFault))

// TestAnUnknownObjectHoldsUpOnlyItsFiles: while one object can't be read, the volume takes the changes of the others, and says so. A file that
// is made of it stays whole.
func TestAnUnknownObjectHoldsUpOnlyItsFiles(t *testing.T) {
	for name, restarts := range map[string]bool{"running": false, "restarted": true} {
		for _, strategy := range []string{"Atomic", "InPlace"} {
			t.Run(name+" "+strategy, func(t *testing.T) {
				inBubble(t, func(e *env) {
					app, db, mix, gone := configMap("app"), secret("db"), configMap("mix"), configMap("gone")
					e.objects.put(app, "a", "1")
					e.objects.put(db, "p", "1")
					e.objects.put(mix, "M", "1")
					r := e.request("v1", "writeStrategy", strategy, "sources", `[{configMap: {name: app}}, {secret: {name: db}}, {configMap: {name: gone, optional: true}},
						{env: {path: e.env, envFrom: [{configMapRef: {name: mix}}, {secretRef: {name: db}}]}}]`)
					e.publish(r)
					e.wantFiles(r, "a", "1", "p", "1", "e.env", "M=1\np=1\n")
					e.objects.failWith(db, errKMS)
					if restarts {
						e.restart()
						e.settle()
					}
					e.objects.put(db, "p", "2")
					e.objects.put(app, "a", "2", "new", "1")
					e.objects.put(mix, "M", "2")
					e.objects.put(gone, "g", "1")
					after(time.Minute)
					e.settle()
					e.wantFiles(r, "a", "2", "new", "1", "p", "1", "e.env", "M=1\np=1\n", "g", "1")
					s := e.status()
					if s.Condition != ConditionStale || !strings.Contains(s.Reason, `Secret "shop/db"`) {
						t.Errorf("%s: %s", s.Condition, s.Reason)
					}
					if s.Shown[app] != e.objects.get(app).Version || s.Shown[mix] == e.objects.get(mix).Version {
						t.Errorf("shown %v", s.Shown)
					}
					e.wantEvents()
					looks := e.mounts.count("Reopen")
					after(10 * testResync)
					if n := e.mounts.count("Reopen") - looks; n > 2 { // saving receipts
						t.Errorf("the files were looked at %d times while nothing changed", n)
					}
					e.objects.remove(app)
					e.settle()
					if s := e.status(); s.Condition != failure.RefDeleted { // it is a fault, which the other condition must not hide
						t.Errorf("%s: %s", s.Condition, s.Reason)
					}
					e.wantEvents("RefDeleted")
					e.objects.put(app, "a", "3", "new", "1")
					e.objects.failWith(db, nil)
					after(time.Minute)
					e.settle()
					e.wantFiles(r, "a", "3", "new", "1", "p", "2", "e.env", "M=2\np=2\n", "g", "1")
					if s := e.status(); s.Condition != ConditionCurrent {
						t.Errorf("%s: %s", s.Condition, s.Reason)
					}
					e.unpublish(r)
					e.wantNothing()
				})
			})
		}
	}
}

// TestNothingIsKnown: a volume of which nothing is known after a restart stays Unknown, and writes nothing.
func TestNothingIsKnown(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("db"), "p", "1")
		r := e.request("v1", "secret", "db")
		e.publish(r)
		e.objects.failWith(secret("db"), errKMS)
		e.restart()
		after(time.Minute)
		e.settle()
		if s := e.status(); s.Condition != ConditionUnknown || !strings.Contains(s.Reason, "not synced") {
			t.Errorf("%s: %s", s.Condition, s.Reason)
		}
		e.wantFiles(r, "p", "1")
	})
}

// stalledOpens stalls once, just before a file is ignored: the queue is read twice, and then somebody opens the file.
type stalledOpens struct {
	*fakeOpens
	stall func()
}

func (o *stalledOpens) Ignore(file int) (receipts.Position, error) {
	if stall := o.stall; stall != nil {
		o.stall = nil
		stall()
	}
	return o.fakeOpens.Ignore(file)
}

// TestAStallBeforeAFileIsIgnored: an open that is still queued when the worker stalls does not count for the content after a rewrite in place.
func TestAStallBeforeAFileIsIgnored(t *testing.T) {
	opens := &stalledOpens{fakeOpens: newFakeOpens()}
	inStoppedBubble(t, func(o *Options) { o.Opens = opens }, func(e *env) {
		e.run()
		app := configMap("app")
		e.objects.put(app, "a", "1")
		r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.publish(r)
		e.read(r, opens.fakeOpens, "a")
		after(receiptTime)
		e.rest()
		e.wantOpened(app, opened.Yes)
		file := e.realPath(r, "a")
		e.halt()
		opens.forget()
		opens.stall = func() {
			_ = opens.Drain(time.Minute)
			_ = opens.Drain(time.Minute)
			if err := opens.open(file); err != nil {
				t.Error(err)
			}
		}
		e.restart()
		after(time.Minute)
		e.rest()
		e.wantOpened(app, opened.Yes)
		e.objects.put(app, "a", "2")
		e.rest()
		e.read(r, opens.fakeOpens) // reports what is queued: the open of the old content
		after(receiptTime)
		e.rest()
		e.wantOpened(app, opened.No, "a")
		e.unpublish(r)
	})
}

// TestAFaultIsNotHidden: a volume that is held, or that waits for its moment, and whose superseded generations cannot be removed, has a
// fault: the status says so, with the reason to wait beside it, and the pod's author gets the event.
func TestAFaultIsNotHidden(t *testing.T) {
	for _, what := range []string{"none", "held", "spreading"} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(e *env) {
				app, db := configMap("app"), secret("db")
				attributes := []string{"sources", "[{configMap: {name: app}}, {secret: {name: db}}]"}
				if what == "spreading" {
					attributes = append(attributes, "spread", "1h")
				}
				e.objects.put(app, "a", "1")
				e.objects.put(db, "p", "1")
				r := e.request("v1", attributes...)
				e.publish(r)
				e.objects.put(db, "p", "2") // leaves a superseded generation
				if what == "spreading" {
					after(time.Until(spreadMoment(r.Pod, time.Hour, time.Now())))
				}
				e.settle()
				switch what {
				case "held":
					e.objects.putShare(app, "0%", "a", "2")
				case "spreading":
					e.objects.put(app, "a", "2")
				}
				e.settle()
				e.mounts.failAt("IsMountedAt", errFault)
				e.mounts.failAt("Reopen", errFault) // nothing can be pruned
				after(10 * time.Minute)
				e.settle()
				if n := e.generations(r); n != 2 {
					t.Fatalf("%d generations", n)
				}
				s := e.status()
				t.Logf("%s: %s", s.Condition, s.Reason)
				if s.Condition != failure.VolumeUpdateFailed {
					t.Errorf("a superseded generation cannot be removed for 10 minutes, and the condition is %s", s.Condition)
				}
				beside := map[string]string{"held": "a newer version for 0% of the pods", "spreading": "has a change, which the files will show at"}[what]
				if !strings.Contains(s.Reason, beside) {
					t.Errorf("the reason to wait is not in %q", s.Reason)
				}
				e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
				e.mounts.failAt("IsMountedAt", nil)
				e.mounts.failAt("Reopen", nil)
			})
		})
	}
}

// TestAMissingFileIsRepairedAtOnce: with spread, files that are missing don't wait, also if an optional object does not exist.
func TestAMissingFileIsRepairedAtOnce(t *testing.T) {
	for _, sources := range []string{"[{configMap: {name: app}}]", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]"} {
		t.Run(sources, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1", "b", "1")
				r := e.request("v1", "sources", sources, "spread", "1h")
				e.publish(r)
				e.halt()
				if err := os.Remove(filepath.Join(e.mounts.directory(r.Target), e.generation(r), "a")); err != nil {
					t.Fatal(err)
				}
				for time.Until(spreadMoment(r.Pod, time.Hour, time.Now())) < 10*time.Minute {
					after(5 * time.Minute)
				}
				e.restart()
				after(5 * time.Second)
				e.settle()
				if got := e.mounts.files(r.Target)["a"]; got != "1" {
					t.Errorf("the file is %q, the condition is %s (%s)", got, e.status().Condition, e.status().Reason)
				}
			})
		})
	}
}

// A new object comes into an expanded text although another object of the text was not known at first. While it is not, the record does not
// name the new object, as the text lacks it.
func TestANewObjectBesideAnUnknownOne(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.objects.put(configMap("app"), "a", "$(NEW)$(PASSWORD)")
		r.Attributes["sources"] = `[{expand: {path: text, configMap: {name: app, key: a}, env: [
			{name: NEW, valueFrom: {configMapKeyRef: {name: new, key: k, optional: true}}},
			{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password, namespace: platform}}}]}}]`
		e.publish(r)
		e.wantFiles(r, "text", "$(NEW)p1")
		e.halt()
		e.objects.put(configMap("new"), "k", "1")
		access.set(func() { access.delay = time.Second })
		e.restart()
		e.settle()
		e.wantFiles(r, "text", "$(NEW)p1")
		if shown := e.recorded(r)[configMap("new")]; shown.UID != "" {
			t.Errorf("the record has %v of an object that is in no file", shown)
		}
		after(2 * time.Second)
		e.settle()
		e.wantFiles(r, "text", "1p1")
	})
}
