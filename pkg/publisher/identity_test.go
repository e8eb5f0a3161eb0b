package publisher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeIdentity takes every token for the pod's own, and accepts it, unless it has an error. Its methods are safe for
// concurrent use.
type fakeIdentity struct {
	mu     sync.Mutex
	err    error
	proofs int
	delay  time.Duration
	// held has the token of each volume that was put and not dropped.
	held map[string]string
}

func (f *fakeIdentity) Check(volume.Pod, volume.Token) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(f.err, authz.ErrNotThePods) {
		return f.err
	}
	return nil
}

// prove is called for a question that carries a token.
func (f *fakeIdentity) prove() error {
	f.mu.Lock()
	f.proofs++
	err, delay := f.err, f.delay
	f.mu.Unlock()
	<-time.After(delay)
	return err
}

func (f *fakeIdentity) takeTime(delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = delay
}

func (f *fakeIdentity) Put(pod volume.Pod, volumeID string, token volume.Token) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := len(f.held) == 0
	f.held[string(pod.UID)+"/"+volumeID] = token.Reveal()
	return first
}

func (f *fakeIdentity) Ready(volume.ServiceAccount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.held) == 0 {
		return authz.ErrNoToken
	}
	return nil
}

func (f *fakeIdentity) Drop(pod volume.Pod, volumeID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, string(pod.UID)+"/"+volumeID)
}

func (f *fakeIdentity) failWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// want compares the tokens that are held, and how often one was proven since the last call.
func (f *fakeIdentity) want(t *testing.T, proofs int, held ...string) {
	synctest.Wait() // what nobody waits for goes by itself
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	got := make([]string, 0, len(f.held))
	for _, token := range f.held {
		got = append(got, token)
	}
	slices.Sort(got)
	if !slices.Equal(got, held) || f.proofs != proofs {
		t.Errorf("%q is held after %d proofs, want %q after %d", got, f.proofs, held, proofs)
	}
	f.proofs = 0
}

// restart is what the process's end does to it.
func (f *fakeIdentity) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.held)
}

// asPods runs a test with a Publisher that reads as the pods, whose accounts may have the
// ConfigMap app and the Secret db.
func asPods(t *testing.T, test func(e *env, identity *fakeIdentity, access *fakeAccess)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		identity := &fakeIdentity{held: map[string]string{}}
		access := &fakeAccess{identity: identity}
		access.grant(configMap("app"), secret("db"))
		e := newEnv(t, func(o *Options) { o.Reviews, o.Identity = access.reviews(), identity })
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "password", "p1")
		test(e, identity, access)
	})
}

const ownSources = `[{configMap: {name: app}}, {secret: {name: db, optional: true, items: [{key: password, path: pw}]}}]`

// tokened is a request of a pod with a token, for a ConfigMap and a Secret.
func (e *env) tokened(id, token string, attributes ...string) Request {
	e.Helper()
	if len(attributes) == 0 {
		attributes = []string{"sources", ownSources}
	}
	r := e.request(id, attributes...)
	r.Token = volume.NewToken(token, time.Now().Add(time.Hour))
	return r
}

const dbRefused = `sources[1].secret: Forbidden: service account "default" of the pod may not get Secret "shop/db"; whoever owns namespace "shop" consents by a Role and a RoleBinding there`

// With its own identity a pod needs a right to what is in its own namespace too, and a
// republish brings its next token.
func TestPodIdentity(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		e.wantFiles(r, "a", "1", "pw", "p1")
		identity.want(e.T, 1, "t1")
		questions := []string{`shop/default ConfigMap "shop/app"`, `shop/default Secret "shop/db"`}
		if got := access.takeAsked(); !slices.Equal(got, questions) {
			t.Errorf("asked %q", got)
		}
		e.publish(e.tokened("v1", "t2"))
		e.settle()
		identity.want(e.T, 0, "t2")
		e.publish(e.tokened("v1", "t2")) // no news
		e.settle()
		without := r
		without.Token, without.TokenErr = volume.Token{}, errors.New("no token")
		e.publish(without)
		identity.want(e.T, 0, "t2")
		if got := access.takeAsked(); len(got) > 0 {
			t.Errorf("a republish asked %q", got)
		}

		access.grant(configMap("app"))
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, dbRefused)
		if got := e.objects.registrations()[registrationKey(r.Pod, "v1")]; !slices.Equal(got, []volume.Ref{configMap("app")}) {
			t.Errorf("%v is still read", got)
		}
		e.wantEvents(r.Pod.String() + ": RefForbidden: " + dbRefused)
		e.unpublish(r)
		identity.want(e.T, 0)
		e.wantNothing()
	})
}

// What a publish needs and lacks; nothing of it stays behind, tokens included.
func TestPodIdentityRefuses(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		none := e.tokened("v1", "t1")
		none.TokenErr = errors.New("secrets: Required value")
		e.wantReason(e.p.Publish(e.ctx, none), ReasonInvalid, "secrets: Required value")

		identity.failWith(fmt.Errorf("%w: shop/default", authz.ErrNotThePods))
		forged := e.tokened("v1", "t1")
		e.wantReason(e.p.Publish(e.ctx, forged), ReasonForbidden, "the token is not the pod's own: shop/default")
		e.wantEvents(forged.Pod.String() + ": RefForbidden: the token is not the pod's own")
		if got := access.takeAsked(); len(got) > 0 || e.objects.registrationsMade > 0 {
			t.Errorf("for a token that is not the pod's it asked %q, and read", got)
		}
		identity.want(e.T, 0)

		identity.failWith(errReview)
		waiting := e.publishing(forged)
		e.wantWaiting(waiting)
		identity.failWith(nil)
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		e.unpublish(forged)

		identity.want(e.T, 2)
		e.objects.remove(configMap("app")) // whose token it is does not change while it waits
		late := e.tokened("v4", "t4")
		waiting = e.publishing(late)
		after(2 * consentAge)
		e.wantWaiting(waiting)
		e.objects.put(configMap("app"), "a", "1")
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		identity.want(e.T, 1, "t4")
		e.unpublish(late)

		access.grant(configMap("app"))
		after(consentAge)
		refused := e.tokened("v2", "t2")
		e.wantReason(e.p.Publish(e.ctx, refused), ReasonForbidden, dbRefused)
		identity.want(e.T, 1)
		access.grant(configMap("app"), secret("db"))
		after(consentAge)
		e.objects.remove(configMap("app"))
		e.wantReason(e.p.Publish(e.ctx, refused), ReasonNotFound, "")
		identity.want(e.T, 1)
		across := e.tokened("v3", "t3", "secret", "db", "namespace", "platform")
		e.wantReason(e.p.Publish(e.ctx, across), ReasonInvalid, "")
		identity.want(e.T, 0)
		e.wantNothing()
	})
}

// After a restart a volume waits for its token, which is nothing to complain of until the
// kubelet should have brought one; then it goes on at once.
func TestPodIdentityAfterARestart(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r, other := e.tokened("v1", "t1"), e.tokened("v2", "t1")
		e.publish(r)
		e.publish(other)
		identity.restart()
		noToken := (&authz.Tokens{}).Ready(r.Pod.Account())
		access.failWith(noToken)
		e.restart()
		e.objects.put(secret("db"), "password", "p2")
		access.takeAsked()
		after(tokenTime - time.Second)
		if n := len(access.takeAsked()); n > 2*2*8 { // each resync, and each retry after as long, asks for two objects of two volumes
			t.Errorf("%d questions without a token", n)
		}
		e.wantFiles(r, "a", "1", "pw", "p1")
		e.wantProblem(r, "")
		e.wantEvents()
		after(2 * testResync)
		e.wantProblem(r, "access could not be reviewed: "+noToken.Error())

		access.failWith(nil)
		e.publish(e.tokened("v1", "t2"))
		e.settle()
		for _, r := range []Request{r, other} { // of one account
			e.wantFiles(r, "a", "1", "pw", "p2")
			e.wantProblem(r, "")
		}
		identity.want(e.T, 2, "t2")
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

// What nobody reads any more needs no token.
func TestPinnedVolumesHoldNoToken(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1", "configMap", "app", "updatePolicy", "Pinned")
		e.publish(r)
		identity.want(e.T, 1)
		e.publish(e.tokened("v1", "t2", "configMap", "app", "updatePolicy", "Pinned"))
		identity.want(e.T, 0)
		e.unpublish(r)
		e.wantNothing()
	})
}

// A mounted volume goes on with the token that its publish brings.
func TestAdoptWithToken(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		identity.restart()
		e.restartUnread()
		e.objects.put(secret("db"), "password", "p2")
		e.publish(e.tokened("v1", "t2"))
		e.settle()
		e.wantFiles(r, "a", "1", "pw", "p2")
		identity.want(e.T, 2, "t2")
		e.unpublish(r)
		identity.want(e.T, 0)
		e.wantNothing()
	})
}

// A change as one account reads it is no business of another account's volumes.
func TestChangesOfOtherAccounts(t *testing.T) {
	asPods(t, func(e *env, _ *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1", "configMap", "app")
		other := e.tokened("v2", "t2", "configMap", "app")
		other.Pod.ServiceAccount = "other"
		e.publish(r)
		e.publish(other)
		e.objects.Subscribe(func(volume.ServiceAccount, volume.Ref) {})
		e.objects.put(configMap("app"), "a", "2")
		e.p.objectChanged(other.Pod.Account(), configMap("app"))
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantFiles(other, "a", "2")
		e.p.objectChanged(r.Pod.Account(), configMap("app"))
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}

// What only the pod's own spec names needs a right as well, also after a restart.
func TestPodIdentityOfAPodEnv(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		e.pods.set(podEnv(), nil)
		access.grant()
		r := e.tokened("v1", "t1", "sources", "[{podEnv: {path: a.env, container: main}}]")
		err := e.p.Publish(e.ctx, r)
		e.wantReason(err, ReasonForbidden, "")
		const at = "spec.containers[0].env[1].valueFrom.secretKeyRef: Forbidden: "
		if err != nil && !strings.HasPrefix(err.Error(), at) {
			t.Errorf("got %v", err)
		}
		access.grant(secret("db"), configMap("app"))
		after(consentAge)
		e.publish(r)
		identity.restart()
		access.grant()
		e.restart()
		e.confirm()
		e.wantProblem(r, at)
		e.unpublish(r)
		e.wantNothing()
	})
}
