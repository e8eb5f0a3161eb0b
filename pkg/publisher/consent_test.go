package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

			e.writes.set(nil, func() error { e.wantWithdrawn(); return nil }) // the status says so before the files show it again
			e.grant(access, sharedConfig, sharedSecret)
			e.writes.set(nil, nil)
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
