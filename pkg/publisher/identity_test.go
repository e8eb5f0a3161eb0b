package publisher

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
func (f *fakeIdentity) prove() (err error) {
	f.locked(func() { f.proofs, err = f.proofs+1, f.err })
	return err
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
	if got := slices.Sorted(maps.Values(f.held)); !slices.Equal(got, held) || f.proofs != proofs {
		t.Errorf("%q is held after %d proofs, want %q after %d", got, f.proofs, held, proofs)
	}
	f.proofs = 0
}

// restart simulates the end of the process.
func (f *fakeIdentity) restart() { f.locked(func() { clear(f.held) }) }

// asPods runs a test with a Publisher that reads with pods' tokens. The accounts may read the ConfigMap app and the Secret db.
func asPods(t *testing.T, test func(e *env, identity *fakeIdentity, access *fakeAccess)) {
	t.Helper()
	identity := &fakeIdentity{held: map[string]string{}}
	access := &fakeAccess{identity: identity}
	access.grant(configMap("app"), secret("db"))
	inBubbleWith(t, func(o *Options) { o.Reviews, o.Identity = access.reviews(), identity }, func(e *env) {
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

func TestAsPods(t *testing.T) { each(t, asPods, asPodsTests) }

var asPodsTests = map[string]func(e *env, identity *fakeIdentity, access *fakeAccess){
	"what a publish needs and lacks: nothing of it remains, including tokens": func(e *env, identity *fakeIdentity, access *fakeAccess) {
		none := e.tokened("v1", "t1")
		none.TokenErr = errors.New("secrets: Required value")
		e.wantReason(e.p.Publish(e.ctx, none), failure.ReasonInvalid, "secrets: Required value")

		identity.failWith(fmt.Errorf("%w: shop/default", authz.ErrNotThePods))
		forged := e.tokened("v1", "t1")
		e.wantReason(e.p.Publish(e.ctx, forged), failure.ReasonForbidden, "the token is not the pod's own: shop/default")
		e.wantEvents(forged.Pod.String() + ": RefForbidden: the token is not the pod's own")
		if got := access.takeAsked(); len(got) > 0 || e.objects.registrationsMade > 0 {
			e.Errorf("for a token that is not the pod's it asked %q, and read", got)
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
	},
	// The kubelet brings a new token with each republish. A republish without a token changes nothing. After a restart, the volume is then
	// still not taken over, because its objects cannot be read without a token.
	"tokens of republishes": func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1")
		none := r
		none.Token, none.TokenErr = volume.Token{}, errors.New("secrets: Required value")
		e.publish(r)
		e.publish(e.tokened("v1", "t2"))
		identity.want(e.T, 1, "t2")
		wantIs(e, "%d times the objects have heard of a token", get(&e.objects.guard, func() int { return e.objects.renewed }), 2)
		e.publish(none)
		identity.want(e.T, 0, "t2")
		e.wantProblem(r, "")

		e.restartUnread()
		const orphan = "it is not updated until the kubelet publishes it again"
		if s := e.status(); !strings.Contains(s.Reason, orphan) {
			e.Errorf("the reason is %q", s.Reason)
		}
		e.must(e.p.Publish(e.ctx, none))
		e.settle()
		if s := e.status(); !strings.Contains(s.Reason, orphan) {
			e.Errorf("the reason is %q", s.Reason)
		}
		e.must(e.p.Publish(e.ctx, e.tokened("v1", "t3")))
		e.settle()
		e.wantProblem(r, "")
		identity.want(e.T, 1, "t3")
		e.end(r)
	},
	"a republish brings another token before the last one was accepted": func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		e.publish(e.tokened("v1", "t1"))
		e.restartUnread()
		identity.failWith(errReview)
		e.must(e.p.Publish(e.ctx, e.tokened("v1", "t2")))
		e.settle()
		identity.failWith(nil)
		e.must(e.p.Publish(e.ctx, e.tokened("v1", "t3")))
		e.wait(testResync)
		wantIs(e, "the token is %q", get(&identity.guard, func() string { return strings.Join(slices.Collect(maps.Values(identity.held)), ",") }), "t3")
		e.wantCondition(ConditionCurrent)
	},
	"objects of other namespaces need a right, too": func(e *env, _ *fakeIdentity, access *fakeAccess) {
		e.opts.CrossNamespace = true
		e.restart()
		e.objects.put(sharedSecret, "password", "p1")
		r := e.tokened("v1", "t1", "sources", "[{configMap: {name: app}}, {secret: {name: db, namespace: platform}}]")
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonForbidden,
			`sources[1].secret.namespace: Forbidden: service account "default" of the pod may not get Secret "platform/db"; the owner of namespace "platform" can allow it with a Role and a RoleBinding there`)
	},
	"after a restart the kubelet brings the tokens: a missing one is a fault only if it stays missing": func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
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
		e.settle() // nothing waits for the next try
		e.wantCondition(ConditionCurrent)
		e.end(r)
	},
	"a volume whose objects are not read any more needs no token": func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1", "configMap", "app", "updatePolicy", "Pinned")
		e.publish(r)
		identity.want(e.T, 1)
		e.publish(e.tokened("v1", "t2", "configMap", "app", "updatePolicy", "Pinned"))
		identity.want(e.T, 0)
		e.end(r)
	},
	"a change that one account reads does not concern another account's volumes": func(e *env, _ *fakeIdentity, _ *fakeAccess) {
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
	},
	"objects that only the pod's own spec names need a right as well, also after a restart": func(e *env, identity *fakeIdentity, access *fakeAccess) {
		e.pods.set(podEnv(), nil)
		access.grant()
		r := e.tokened("v1", "t1", "sources", "[{podEnv: {path: a.env, container: main}}]")
		err := e.p.Publish(e.ctx, r)
		e.wantReason(err, failure.ReasonForbidden, "")
		const at = "spec.containers[0].env[1].valueFrom.secretKeyRef: Forbidden: "
		if err != nil && !strings.HasPrefix(err.Error(), at) {
			e.Errorf("got %v", err)
		}
		access.grant(secret("db"), configMap("app"))
		after(consentAge)
		e.publish(r)
		access.grant()
		e.restart()
		e.confirm()
		e.wantProblem(r, at)
		e.end(r)
	},
	// A republish may bring a foreign token, for example if the CSIDriver object lost its tokenRequests and the pod's author wrote one. It
	// is never used.
	"a republish with a foreign token": func(e *env, identity *fakeIdentity, access *fakeAccess) {
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
	},
	"a token that arrives while the lack of one is being detected is not overlooked": func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		access.failWith((&authz.Tokens{}).Ready(r.Pod.Account()))
		access.locked(func() { access.delay = 2 * time.Second })
		e.restart()
		e.objects.put(secret("db"), "password", "p2")
		after(time.Second)
		access.failWith(nil)
		e.publish(e.tokened("v1", "t2"))
		e.wait(10 * time.Second)
		e.wantFiles(r, "a", "1", "pw", "p2")
	},
	"only a volume that needs a token can lack one": func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		e.publish(e.tokened("v1", "token"))
		wantIs(e, "without a token: %v", e.status().WithoutToken, false)
		identity.restart()
		wantIs(e, "without a token: %v", e.status().WithoutToken, true)
	},
}

var errForeign = fmt.Errorf("%w: shop/default", authz.ErrNotThePods)

// asNode is like inBubble, with a Publisher that reads with its node's rights, and pods whose specs name the ConfigMap "app".
func asNode(t *testing.T, test func(e *env)) {
	t.Helper()
	inStoppedBubble(t, func(o *Options) { o.NodeRights = true }, func(e *env) {
		e.pods.name(configMap("app"))
		e.run()
		test(e)
	})
}

// unrelated is the answer of a node authorizer.
func unrelated(ref volume.Ref) error {
	return apierrors.NewForbidden(resourceOf(ref), ref.Name, errors.New("no relationship found"))
}

// A new volume cannot show an object that may not be read any more, even if its state is known: the API server tells nothing about it.
func TestPublishOfWhatIsDenied(t *testing.T) {
	for name, denied := range map[string]error{
		"forbidden":    unrelated(configMap("app")),
		"unauthorized": apierrors.NewUnauthorized("the token is no good"),
	} {
		inBubbleOf(t, name, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			live, next := e.request("v1"), e.request("v2")
			e.publish(live)
			e.objects.deny(configMap("app"), denied)
			e.settle()
			e.wantEvents("pod-v1: RefForbidden")
			e.wantReason(e.p.Publish(e.ctx, next), failure.ReasonForbidden, denied.Error())
			e.wantEvents("pod-v2: RefForbidden")
			e.publish(live) // again, as after a restart of the kubelet
			e.wantFiles(live, "a", "1")
			e.objects.deny(configMap("app"), nil)
			e.publish(next)
			e.wantFiles(next, "a", "1")
		})
	}
}
