package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pkgaccess "github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
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
	synctest.Test(t, func(t *testing.T) {
		access := &fakeAccess{}
		access.grant(sharedSecret, sharedConfig)
		e := newEnv(t, func(o *Options) { o.Reviews, o.CrossNamespace = access.reviews(), true })
		e.run()
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

// An error of the review is not a refusal: the publish waits and can be retried.
func TestPublishWaitsForAReview(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
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
		if took := time.Since(begin); took != testWait {
			t.Errorf("it gave up after %s", took)
		}
		waiting = e.waiting(r)
		e.unpublish(r)
		e.wantReason(<-waiting, failure.ReasonBusy, "")
		waiting = e.waiting(r)
		e.p.StopWaiting()
		e.wantReason(<-waiting, failure.ReasonUnavailable, "")
		e.wantNothing()
	})
}

// After a restart nothing is written before the rights were reviewed, and files whose right was revoked meanwhile are removed.
func TestReviewAfterARestart(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.failWith(errReview)
		e.restart()
		e.update(sharedSecret, "password", "p2")
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		access.failWith(nil)
		access.grant(sharedConfig)
		e.wait(5*time.Second + 2*refusalTime)
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
		e.restart()
		e.update(configMap("app"), "a", "2") // an object that does not exist needs no confirmation
		e.wantFiles(r, "a", "2", "app.env", "CA=c1\nOWN=1\n")
		e.wantProblem(r, secretRefused)

		e.opts.CrossNamespace = false // disabled for the whole node
		e.restart()
		e.confirm()
		e.wantFiles(r, "a", "2", "app.env", "OWN=1\n")
		e.wantProblem(r, "sources[1].secret.namespace: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)")
		e.publish(r)
		e.end(r)
	})
}

func TestOtherNamespacesAreSwitchedOff(t *testing.T) {
	inBubble(t, func(e *env) {
		err := e.p.Publish(e.ctx, e.request("v1", "secret", "db", "namespace", "platform"))
		e.wantReason(err, failure.ReasonInvalid, `namespace: Invalid value: "platform": must be the pod's own namespace "shop": this node's plugin shows no objects of others (--cross-namespace)`)
		e.wantNothing()
	})
}
