package publisher

import (
	"fmt"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/authz"
)

var errForeign = fmt.Errorf("%w: shop/default", authz.ErrNotThePods)

// What the API server says about a pod needs no token as a proof: after a restart, another pod's token of the same account is enough.
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
		e.objects.put(secret("db"), "password", "p2")
		e.settle()
		e.wantFiles(r, "a", "1", "pw", "p2")
		e.wantProblem(r, "")
		e.wantEvents()
		e.unpublish(r)
		e.wantNothing()
	})
}

// A token that arrives while the lack of one is being detected is not overlooked.
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
