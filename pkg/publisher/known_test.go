package publisher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

// errKMS is what the manager returns for an object that the API server can't decrypt.
var errKMS = fmt.Errorf("Secret \"shop/db\": %w: %w", manager.ErrNotSynced, apierrors.NewInternalError(errFault))

// TestAnUnknownObjectHoldsUpOnlyItsFiles: while one object can't be read, the volume takes the changes of the others, and says so. A file that
// is made of it stays whole.
func TestAnUnknownObjectHoldsUpOnlyItsFiles(t *testing.T) {
	for name, restarts := range map[string]bool{"running": false, "restarted": true} {
		for _, strategy := range []string{"Atomic", "InPlace"} {
			inBubbleOf(t, name+" "+strategy, func(e *env) {
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
					e.resume()
				}
				e.objects.put(db, "p", "2")
				e.objects.put(app, "a", "2", "new", "1")
				e.objects.put(mix, "M", "2")
				e.objects.put(gone, "g", "1")
				e.wait(time.Minute)
				e.wantFiles(r, "a", "2", "new", "1", "p", "1", "e.env", "M=1\np=1\n", "g", "1")
				s := e.status()
				if s.Condition != ConditionStale || !strings.Contains(s.Reason, `Secret "shop/db"`) {
					e.Errorf("%s: %s", s.Condition, s.Reason)
				}
				if s.Shown[app] != e.objects.get(app).Version || s.Shown[mix] == e.objects.get(mix).Version {
					e.Errorf("shown %v", s.Shown)
				}
				e.wantEvents()
				looks := e.mounts.count("Reopen")
				after(10 * testResync)
				if n := e.mounts.count("Reopen") - looks; n > 2 { // saving receipts
					e.Errorf("the files were looked at %d times while nothing changed", n)
				}
				e.remove(app)
				if s := e.status(); s.Condition != failure.RefDeleted { // it is a fault, which the other condition must not hide
					e.Errorf("%s: %s", s.Condition, s.Reason)
				}
				e.wantEvents("RefDeleted")
				e.objects.put(app, "a", "3", "new", "1")
				e.objects.failWith(db, nil)
				e.wait(time.Minute)
				e.wantFiles(r, "a", "3", "new", "1", "p", "2", "e.env", "M=2\np=2\n", "g", "1")
				e.wantCondition(ConditionCurrent)
				e.end(r)
			})
		}
	}
}

// TestNothingIsKnown: a volume of which nothing is known after a restart stays Unknown, and writes nothing.
func TestNothingIsKnown(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("db"), "p", "1")
		r := e.publishNew("v1", "secret", "db")
		e.objects.failWith(secret("db"), errKMS)
		e.restart()
		e.wait(time.Minute)
		e.wantCondition(ConditionUnknown, "not synced")
		e.wantFiles(r, "p", "1")
	})
}

// TestAFaultIsNotHidden: a volume that is held, or that waits for its moment, and whose superseded generations cannot be removed, has a
// fault: the status says so, with the reason to wait beside it, and the pod's author gets the event.
func TestAFaultIsNotHidden(t *testing.T) {
	for _, what := range []string{"none", "held", "spreading"} {
		inBubbleOf(t, what, func(e *env) {
			app, db := configMap("app"), secret("db")
			attributes := []string{"sources", "[{configMap: {name: app}}, {secret: {name: db}}]"}
			if what == "spreading" {
				attributes = append(attributes, "spread", "1h")
			}
			e.objects.put(app, "a", "1")
			e.objects.put(db, "p", "1")
			r := e.publishNew("v1", attributes...)
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
			e.failReopen(errFault) // nothing can be pruned
			e.wait(10 * time.Minute)
			e.wantGenerations(r, 2)
			s := e.status()
			e.Logf("%s: %s", s.Condition, s.Reason)
			if s.Condition != failure.VolumeUpdateFailed {
				e.Errorf("a superseded generation cannot be removed for 10 minutes, and the condition is %s", s.Condition)
			}
			beside := map[string]string{"held": "a newer version for 0% of the pods", "spreading": "has a change, which the files will show at"}[what]
			if !strings.Contains(s.Reason, beside) {
				e.Errorf("the reason to wait is not in %q", s.Reason)
			}
			e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
			e.failReopen(nil)
		})
	}
}

// TestAMissingFileIsRepairedAtOnce: with spread, files that are missing don't wait, also if an optional object does not exist.
func TestAMissingFileIsRepairedAtOnce(t *testing.T) {
	for _, sources := range []string{"[{configMap: {name: app}}]", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]"} {
		inBubbleOf(t, sources, func(e *env) {
			e.objects.put(configMap("app"), "a", "1", "b", "1")
			r := e.publishNew("v1", "sources", sources, "spread", "1h")
			e.halt()
			e.removeFile(r, e.generation(r), "a")
			farFromMoment(r)
			e.restart()
			e.wait(5 * time.Second)
			if got := e.mounts.files(r.Target)["a"]; got != "1" {
				e.Errorf("the file is %q, the condition is %s (%s)", got, e.status().Condition, e.status().Reason)
			}
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
		access.locked(func() { access.delay = time.Second })
		e.resume()
		e.wantFiles(r, "text", "$(NEW)p1")
		if shown := e.recorded(r)[configMap("new")]; shown.UID != "" {
			t.Errorf("the record has %v of an object that is in no file", shown)
		}
		e.wait(2 * time.Second)
		e.wantFiles(r, "text", "1p1")
	})
}
