package publisher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeIdentity accepts every token as the pod's own, unless it has an error. Its methods are safe for concurrent use.
type fakeIdentity struct {
	guard
	err    error
	proofs int
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
	defer f.mu.Unlock()
	f.proofs++
	return f.err
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
	f.locked(func() { delete(f.held, string(pod.UID)+"/"+volumeID) })
}

func (f *fakeIdentity) failWith(err error) { f.locked(func() { f.err = err }) }

// want compares the held tokens, and how often one was proven since the last call.
func (f *fakeIdentity) want(t *testing.T, proofs int, held ...string) {
	synctest.Wait() // volumes without a waiting publish are forgotten by themselves
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

// restart simulates the end of the process.
func (f *fakeIdentity) restart() { f.locked(func() { clear(f.held) }) }

// asPods runs a test with a Publisher that reads with pods' tokens. The accounts may read the ConfigMap app and the Secret db.
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

// tokened returns a request of a pod with a token, for a ConfigMap and a Secret.
func (e *env) tokened(id, token string, attributes ...string) binding.Request {
	e.Helper()
	if len(attributes) == 0 {
		attributes = []string{"sources", ownSources}
	}
	r := e.request(id, attributes...)
	r.Token = volume.NewToken(token, time.Now().Add(time.Hour))
	return r
}

const dbRefused = `sources[1].secret: Forbidden: service account "default" of the pod may not get Secret "shop/db"; the owner of namespace "shop" can allow it with a Role and a RoleBinding there`

// What a publish needs and lacks. Nothing of it remains, including tokens.
func TestPodIdentityRefuses(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		none := e.tokened("v1", "t1")
		none.TokenErr = errors.New("secrets: Required value")
		e.wantReason(e.p.Publish(e.ctx, none), failure.ReasonInvalid, "secrets: Required value")

		identity.failWith(fmt.Errorf("%w: shop/default", authz.ErrNotThePods))
		forged := e.tokened("v1", "t1")
		e.wantReason(e.p.Publish(e.ctx, forged), failure.ReasonForbidden, "the token is not the pod's own: shop/default")
		e.wantEvents(forged.Pod.String() + ": RefForbidden: the token is not the pod's own")
		if got := access.takeAsked(); len(got) > 0 || e.objects.registrationsMade > 0 {
			t.Errorf("for a token that is not the pod's it asked %q, and read", got)
		}
		identity.want(e.T, 0)

		identity.failWith(errReview)
		waiting := e.waiting(forged)
		identity.failWith(nil)
		e.wantDone(waiting)
		e.unpublish(forged)

		identity.want(e.T, 2)
		e.objects.remove(configMap("app")) // the owner of the token does not change while it waits
		late := e.tokened("v4", "t4")
		waiting = e.publishing(late)
		after(2 * consentAge)
		e.wantWaiting(waiting)
		e.objects.put(configMap("app"), "a", "1")
		e.wantDone(waiting)
		identity.want(e.T, 1, "t4")
		e.unpublish(late)

		access.grant(configMap("app"))
		after(consentAge)
		refused := e.tokened("v2", "t2")
		e.wantReason(e.p.Publish(e.ctx, refused), failure.ReasonForbidden, dbRefused)
		identity.want(e.T, 1)
		access.grant(configMap("app"), secret("db"))
		after(consentAge)
		e.objects.remove(configMap("app"))
		e.wantReason(e.p.Publish(e.ctx, refused), failure.ReasonNotFound, "")
		identity.want(e.T, 1)
		across := e.tokened("v3", "t3", "secret", "db", "namespace", "platform")
		e.wantReason(e.p.Publish(e.ctx, across), failure.ReasonInvalid, "")
		identity.want(e.T, 0)
		e.wantNothing()
	})
}

// The kubelet brings a new token with each republish. A republish without a token changes nothing. After a restart, the volume is then still
// not taken over, because its objects cannot be read without a token.
func TestTokensOfRepublishes(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1")
		none := r
		none.Token, none.TokenErr = volume.Token{}, errors.New("secrets: Required value")
		e.publish(r)
		e.publish(e.tokened("v1", "t2"))
		identity.want(e.T, 1, "t2")
		e.publish(none)
		identity.want(e.T, 0, "t2")
		e.wantProblem(r, "")

		identity.restart()
		e.restartUnread()
		const orphan = "it is not updated until the kubelet publishes it again"
		if s := e.status(); !strings.Contains(s.Reason, orphan) {
			t.Errorf("the reason is %q", s.Reason)
		}
		if err := e.p.Publish(e.ctx, none); err != nil {
			t.Fatal(err)
		}
		e.settle()
		if s := e.status(); !strings.Contains(s.Reason, orphan) {
			t.Errorf("the reason is %q", s.Reason)
		}
		if err := e.p.Publish(e.ctx, e.tokened("v1", "t3")); err != nil {
			t.Fatal(err)
		}
		e.settle()
		e.wantProblem(r, "")
		identity.want(e.T, 1, "t3")
		e.end(r)
	})
}

// After a restart the plugin has no tokens. The kubelet brings them. A missing token is a fault only if it stays missing.
func TestTokensComeAfterARestart(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		identity.restart()
		access.failWith(fmt.Errorf("service account %s: %w", r.Pod.Account(), authz.ErrNoToken))
		e.restart()
		after(2 * time.Minute)
		e.wantCondition(ConditionUnknown, authz.ErrNoToken.Error())
		e.wantEvents()
		after(3 * time.Minute)
		e.wantCondition(failure.VolumeUpdateFailed, authz.ErrNoToken.Error())
		e.wantEvents("VolumeUpdateFailed: access could not be reviewed: ")
		e.wantFiles(r, "a", "1", "pw", "p1")
		access.failWith(nil)
		e.publish(e.tokened("v1", "t2"))
		after(3 * time.Minute)
		e.wantCondition(ConditionCurrent)
		e.end(r)
	})
}

// A publish whose question is in flight when the plugin stops waits for the answer.
func TestAStopWaitsForAnAnswer(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		access.locked(func() { access.delay = graceTime / 2 })
		waiting := e.waiting(r)
		e.p.StopWaiting()
		e.wantDone(waiting)
	})
}

// A volume whose objects are not read any more needs no token.
func TestPinnedVolumesHoldNoToken(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1", "configMap", "app", "updatePolicy", "Pinned")
		e.publish(r)
		identity.want(e.T, 1)
		e.publish(e.tokened("v1", "t2", "configMap", "app", "updatePolicy", "Pinned"))
		identity.want(e.T, 0)
		e.end(r)
	})
}

// A change that one account reads does not concern another account's volumes.
func TestChangesOfOtherAccounts(t *testing.T) {
	asPods(t, func(e *env, _ *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1", "configMap", "app")
		other := e.tokened("v2", "t2", "configMap", "app")
		other.Pod.ServiceAccount = "other"
		e.publish(r, other)
		e.objects.Subscribe(func(volume.ServiceAccount, volume.Ref) {})
		e.objects.put(configMap("app"), "a", "2")
		e.p.table.objectChanged(other.Pod.Account(), configMap("app"))
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantFiles(other, "a", "2")
		e.p.table.objectChanged(r.Pod.Account(), configMap("app"))
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}

// Objects that only the pod's own spec names need a right as well, also after a restart.
func TestPodIdentityOfAPodEnv(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		e.pods.set(podEnv(), nil)
		access.grant()
		r := e.tokened("v1", "t1", "sources", "[{podEnv: {path: a.env, container: main}}]")
		err := e.p.Publish(e.ctx, r)
		e.wantReason(err, failure.ReasonForbidden, "")
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
		e.end(r)
	})
}

var errForeign = fmt.Errorf("%w: shop/default", authz.ErrNotThePods)

// What the API server says about a pod needs no token as a proof: after a restart, another pod's token of the same account is enough.
func TestADerivedRequestIsProven(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r, other := e.tokened("v1", "t1"), e.tokened("v2", "t1")
		e.publish(r, other)
		identity.restart()
		e.resume()
		e.objects.put(secret("db"), "password", "p2")
		e.publish(e.tokened("v2", "t2"))
		e.settle()
		e.wantFiles(other, "a", "1", "pw", "p2")
		e.wantFiles(r, "a", "1", "pw", "p2")
		e.end(r, other)
	})
}

// A republish may bring a foreign token, for example if the CSIDriver object lost its tokenRequests and the pod's author wrote one. It is
// never used.
func TestARepublishWithAForeignToken(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		identity.failWith(errForeign)
		e.publish(e.tokened("v1", "x"))
		e.settle()
		identity.want(e.T, 1, "t1")
		e.update(secret("db"), "password", "p2")
		e.wantFiles(r, "a", "1", "pw", "p2")
		e.wantProblem(r, "")
		e.wantEvents()
		e.end(r)
	})
}

// A token that arrives while the lack of one is being detected is not overlooked.
func TestATokenComesDuringAReview(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		identity.restart()
		access.failWith((&authz.Tokens{}).Ready(r.Pod.Account()))
		access.locked(func() { access.delay = 2 * time.Second })
		e.restart()
		e.objects.put(secret("db"), "password", "p2")
		after(time.Second)
		access.failWith(nil)
		e.publish(e.tokened("v1", "t2"))
		e.wait(10 * time.Second)
		e.wantFiles(r, "a", "1", "pw", "p2")
	})
}
