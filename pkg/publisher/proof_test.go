package publisher

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/authz"
)

var errForeign = fmt.Errorf("%w: shop/default", authz.ErrNotThePods)

const foreignProblem = "the token is not the pod's own: shop/default"

// A publish of a mounted volume may be of a pod that claims to be another: it gets nothing new
// of what the account that it claims may read, and keeps what it has.
func TestAdoptWithAForeignToken(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r, other := e.tokened("v1", "t1"), e.tokened("v2", "t1")
		e.publish(r)
		e.publish(other)
		e.pods.remove(r)
		identity.restart()
		e.restart()
		e.settle() // v2 is derived
		e.publish(e.tokened("v2", "t2"))
		e.settle()
		identity.want(e.T, 2, "t2")
		identity.failWith(errForeign)
		e.publish(e.tokened("v1", "x"))
		e.objects.put(secret("db"), "password", "p2")
		e.settle()
		e.wantFiles(other, "a", "1", "pw", "p2")
		e.wantFiles(r, "a", "1", "pw", "p1")
		e.wantProblem(r, foreignProblem)
		e.wantEvents(r.Pod.String() + ": RefForbidden: " + foreignProblem)
		identity.want(e.T, 0, "t2")
		e.publish(e.tokened("v1", "y"))
		after(testResync)
		e.settle()
		e.wantFiles(r, "a", "1", "pw", "p1")
		identity.failWith(nil)
		e.publish(e.tokened("v1", "t3"))
		e.settle()
		e.wantFiles(r, "a", "1", "pw", "p2")
		e.wantProblem(r, "")
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

// What the API server says of a pod needs no token to be proven: another pod's token of the
// same account is enough after a restart.
func TestADerivedRequestIsProven(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r, other := e.tokened("v1", "t1"), e.tokened("v2", "t1")
		e.publish(r)
		e.publish(other)
		identity.restart()
		e.restart()
		e.settle()
		e.objects.put(secret("db"), "password", "p2")
		e.publish(e.tokened("v2", "t2"))
		e.settle()
		e.wantFiles(other, "a", "1", "pw", "p2")
		e.wantFiles(r, "a", "1", "pw", "p2")
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

// A republish may bring a token of somebody else, as where the CSIDriver object has lost its
// tokenRequests and the pod's author wrote one: it is not used, for nobody.
func TestARepublishWithAForeignToken(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		identity.failWith(errForeign)
		e.publish(e.tokened("v1", "x"))
		e.settle()
		identity.want(e.T, 1, "t1")
		e.objects.put(secret("db"), "password", "p2")
		e.settle()
		e.wantFiles(r, "a", "1", "pw", "p2")
		e.wantProblem(r, "")
		e.wantEvents()
		e.unpublish(r)
		e.wantNothing()
	})
}

// An unpublish beside the proof of a token leaves none behind.
func TestUnpublishEndsBesideAProof(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		identity.takeTime(time.Second)
		e.publish(e.tokened("v1", "t2"))
		synctest.Wait()
		e.unpublish(r)
		after(2 * time.Second)
		e.settle()
		identity.want(e.T, 1)
		e.wantNothing()
	})
}

// A token that comes while the lack of one is being found out is not overlooked.
func TestATokenComesDuringAReview(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, access *fakeAccess) {
		r := e.tokened("v1", "t1")
		e.publish(r)
		identity.restart()
		access.failWith((&authz.Tokens{}).Ready(r.Pod.Account()))
		access.set(func() { access.delay = 2 * time.Second })
		e.restart()
		e.objects.put(secret("db"), "password", "p2")
		after(time.Second)
		access.failWith(nil)
		e.publish(e.tokened("v1", "t2"))
		after(10 * time.Second)
		e.settle()
		e.wantFiles(r, "a", "1", "pw", "p2")
	})
}
