package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/internal/fakenode"
	pkgaccess "github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeAccess is an API server that refuses every right that was not granted. Its methods are safe for concurrent use.
type fakeAccess struct {
	guard
	granted map[volume.Ref]bool
	err     error
	// delay is how long an answer takes. more is added to it for an object. The answer is the one that is true when the question
	// arrives.
	delay time.Duration
	more  map[volume.Ref]time.Duration
	asked []string
	// identity proves the tokens of questions.
	identity *fakeIdentity
}

func (f *fakeAccess) reviews() *pkgaccess.Reviews {
	return &pkgaccess.Reviews{Ask: f.ask, Verbs: []string{"get"}}
}

func (f *fakeAccess) ask(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, _ string, token volume.Token) (bool, error) {
	if token.Reveal() != "" {
		if err := f.identity.prove(); err != nil {
			return false, err
		}
	}
	f.mu.Lock()
	f.asked = append(f.asked, fmt.Sprintf("%s/%s %s", account.Namespace, account.Name, ref))
	allowed, err, delay := f.granted[ref], f.err, f.delay+f.more[ref]
	f.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return allowed && err == nil, err
}

func (f *fakeAccess) grant(refs ...volume.Ref) {
	f.locked(func() {
		f.granted = map[volume.Ref]bool{}
		for _, ref := range refs {
			f.granted[ref] = true
		}
	})
}

func (f *fakeAccess) failWith(err error) { f.locked(func() { f.err = err }) }

// takeAsked returns the questions so far, sorted, and forgets them.
func (f *fakeAccess) takeAsked() []string {
	var asked []string
	f.locked(func() { asked, f.asked = f.asked, nil })
	slices.Sort(asked)
	return asked
}

var (
	sharedSecret = volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: "db"}
	sharedConfig = volume.Ref{Kind: volume.ConfigMap, Namespace: "platform", Name: "ca"}
	errReview    = errors.New("the API server is away")
)

// acrossSources shows an object of the pod's namespace and objects of another one.
const acrossSources = `
- configMap: {name: app}
- secret: {name: db, namespace: platform, optional: true}
- env: {path: app.env, envFrom: [{configMapRef: {name: ca, namespace: platform}}], env: [{name: OWN, value: "1"}]}
`

// acrossInBubble runs a test with a Publisher that shows objects of other namespaces. All objects of acrossSources are granted.
func acrossInBubble(t *testing.T, test func(e *env, access *fakeAccess, r binding.Request)) {
	t.Helper()
	access := &fakeAccess{}
	access.grant(sharedSecret, sharedConfig)
	inBubbleWith(t, func(o *Options) { o.Reviews, o.CrossNamespace = access.reviews(), true }, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(sharedSecret, "password", "p1")
		e.objects.put(sharedConfig, "CA", "c1")
		test(e, access, e.request("v1", "sources", acrossSources))
	})
}

// acrossInBubbleOf is acrossInBubble in a subtest.
func acrossInBubbleOf(t *testing.T, name string, test func(e *env, access *fakeAccess, r binding.Request)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { acrossInBubble(t, test) })
}

// grant grants these rights and no other, and waits until that has had its effect.
func (e *env) grant(access *fakeAccess, refs ...volume.Ref) {
	e.Helper()
	access.grant(refs...)
	e.wait(reviewTime)
}

const (
	secretRefused = `sources[1].secret.namespace: Forbidden: service account "default" of the pod may not get Secret "platform/db"; the owner of namespace "platform" can allow it with a Role and a RoleBinding there`
	configRefused = `sources[2].env.envFrom[0].configMapRef.namespace: Forbidden: service account "default" of the pod may not get ConfigMap "platform/ca"; the owner of namespace "platform" can allow it with a Role and a RoleBinding there`
)

func TestOtherNamespacesAreSwitchedOff(t *testing.T) {
	inBubble(t, func(e *env) {
		err := e.p.Publish(e.ctx, e.request("v1", "secret", "db", "namespace", "platform"))
		e.wantReason(err, failure.ReasonInvalid, `namespace: Invalid value: "platform": must be the pod's own namespace "shop": this node's plugin shows no objects of others (--cross-namespace)`)
		e.wantNothing()
	})
}

// reviewTime is longer than a change of a right may take to have an effect: a resync starts within an interval, at a random moment of the
// next one, and a refusal must be confirmed.
const reviewTime = 2*testResync + 2*refusalTime

// confirm waits until a first refusal has been confirmed.
func (e *env) confirm() {
	e.settle()
	e.wait(refusalTime)
}

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

var errForbiddenObject = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "app", errors.New("no"))

// wantWithdrawn checks which objects the status reports as withdrawn.
func (e *env) wantWithdrawn(refs ...volume.Ref) {
	e.Helper()
	s := e.status()
	got := slices.Collect(maps.Keys(s.Withdrawn))
	if len(got) != len(refs) || slices.ContainsFunc(refs, func(ref volume.Ref) bool { return !s.Withdrawn[ref] }) {
		e.Errorf("withdrawn: %v, want %v", got, refs)
	}
	for ref := range s.Withdrawn {
		if s.Shown[ref].UID != "" {
			e.Errorf("%s is withdrawn, and shown at %v", ref, s.Shown[ref])
		}
	}
}

// TestWithdrawnIsTold: a refused object is reported as withdrawn once no file of it remains, also in superseded generations, until the pod
// may read it again.
func TestWithdrawnIsTold(t *testing.T) {
	for _, strategy := range strategies {
		acrossInBubbleOf(t, strategy, func(e *env, access *fakeAccess, r binding.Request) {
			r.Attributes["writeStrategy"] = strategy
			e.publish(r)
			e.wantWithdrawn()
			access.grant(sharedConfig)
			e.takeUntil(func() bool {
				s := e.status()
				if len(s.Withdrawn) > 0 && e.generations(r) != 1 {
					e.Errorf("%v is withdrawn, and %d generations are there", s.Withdrawn, e.generations(r))
				}
				return len(s.Withdrawn) > 0
			})
			e.wantSome(r, "password", "")
			e.wantWithdrawn(sharedSecret)

			e.restart() // a new process verifies that
			e.confirm()
			after(2 * pruneTime)
			e.wantWithdrawn(sharedSecret)

			e.update(configMap("app"), "a", "2") // the last generation has no file of it either
			e.wantSome(r, "a", "2")
			e.wantWithdrawn(sharedSecret)

			e.grant(access, sharedConfig, sharedSecret)
			e.wantWithdrawn()
			e.wantFiles(r, "a", "2", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
			e.end(r)
		})
	}
}

// With a lower limit, a volume above it may still change and become smaller.
func TestAShrinkIsNeverTooLarge(t *testing.T) {
	for name, restart := range map[string]func(e *env, r binding.Request){
		"by its pod's spec": func(e *env, _ binding.Request) { e.restart() },
		"by a publish":      func(e *env, r binding.Request) { e.restartUnread(); e.publish(r) },
	} {
		for _, strategy := range []string{"Atomic", "InPlace"} {
			inBubbleOf(t, name+" "+strategy, func(e *env) {
				e.objects.put(configMap("app"), "a", pages(100), "b", pages(100))
				r := e.publishNew("v1", "configMap", "app", "writeStrategy", strategy)
				e.opts.MaxVolumeSize, e.opts.MaxTotalSize = 50*pageSize, 50*pageSize
				restart(e, r)
				e.settle()
				e.updateApp(r, "a", strings.ToUpper(pages(100)), "b", pages(100)) // this takes as much as before
				e.updateApp(r, "a", pages(90), "b", pages(99))
				e.wantProblem(r, "")
				e.wantUsed(taken(189, 2))
				e.update(configMap("app"), "a", pages(90), "b", pages(100))
				e.wantFiles(r, "a", pages(90), "b", pages(99))
				e.wantProblem(r, "more than the 204800 bytes that a volume may have (--max-volume-size)")
				e.end(r)
			})
		}
	}
}
