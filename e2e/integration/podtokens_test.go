package integration

import (
	"errors"
	"os"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/harness"
	"github.com/refvol/refvol/e2e/harness/faultproxy"
)

// rejected waits until the API server accepts the volume's token no longer. It keeps what
// it knows of a token for ten seconds.
func (n *podNode) rejected(v *harness.Volume) {
	n.t.Helper()
	harness.Eventually(n.t, 30*time.Second, func() error {
		review, err := shared.Client().AuthenticationV1().TokenReviews().Create(n.t.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: v.Token}}, metav1.CreateOptions{})
		if err == nil && review.Status.Authenticated {
			err = errors.New("the API server still accepts the token")
		}
		return err
	})
}

// TestATokenDiesWithItsPod: a pod that is gone at the API server takes its token with it,
// and another pod of its account carries on, both the watch and the reviews.
func TestATokenDiesWithItsPod(t *testing.T) {
	t.Parallel()
	behind := newProxiedAs(t, overlayAccount(t, "pod-identity"), faultproxy.Options{}, "--identity=pod", "--resync-interval=1s")
	n := &podNode{&acrossNode{node: behind.node}}
	n.secret("db", map[string]string{"password": n.canary()})
	allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
	stays, goes := n.own("secret", "db", "web"), n.own("secret", "db", "web")
	goes.TokenInSecrets = true
	harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), stays) })
	n.mustPublish(goes)
	n.renewToken(goes) // the newest token is the first choice
	n.mustPublish(goes)

	n.removePod(goes)
	n.rejected(goes)
	behind.proxy.ResetConnections()
	second := n.canary()
	n.secret("db", map[string]string{"password": second})
	n.arrives(stays, "password", second, healed)
	n.arrives(goes, "password", second, healed)
	n.hasCondition(stays, "")

	// And the other way round: who carries the watch is unpublished.
	n.mustUnpublish(goes)
	behind.proxy.ResetConnections()
	third := n.canary()
	n.secret("db", map[string]string{"password": third})
	n.arrives(stays, "password", third, healed)
	n.mustUnpublish(stays)
	n.wantNothingLeft()
	harness.Eventually(t, soon, func() error { return noWatches(behind.proxy) })
}

// TestPodsOfAnAccountShareAWatch: one watch for an account and object, however many pods;
// one more for each other account.
func TestPodsOfAnAccountShareAWatch(t *testing.T) {
	t.Parallel()
	behind := newProxiedAs(t, overlayAccount(t, "pod-identity"), faultproxy.Options{}, "--identity=pod", "--resync-interval=1s")
	n := &podNode{&acrossNode{node: behind.node}}
	n.secret("db", map[string]string{"password": n.canary()})
	allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"), account(n.namespace, "batch"))
	var volumes []*harness.Volume
	for i := range 10 {
		v := n.own("secret", "db", []string{"web", "web", "batch"}[i%3])
		n.publishes(v, soon)
		volumes = append(volumes, v)
	}
	harness.Eventually(t, soon, func() error {
		total := 0
		for _, open := range behind.proxy.Watches() {
			total += open
		}
		if total != 2 {
			return errors.New("the watches are not two")
		}
		return nil
	})
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
	harness.Eventually(t, soon, func() error { return noWatches(behind.proxy) })
}

// TestALostRecordProvesNothing: where the CSIDriver lacks podInfoOnMount, the author of a pod
// whose mount is taken over may claim the account of another one, and gets nothing of it.
func TestALostRecordProvesNothing(t *testing.T) {
	t.Parallel()
	n := newPodNode(t)
	n.secret("db", map[string]string{"password": n.canary()})
	allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
	revoke := allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "other"))
	stays, forged := n.own("secret", "db", "web"), n.own("secret", "db", "other")
	n.publishes(stays, soon)
	n.publishes(forged, soon)
	n.mustKill()
	revoke()
	if err := os.RemoveAll(n.StateDir()); err != nil {
		t.Fatal(err)
	}
	n.mustStart()
	forged.ServiceAccount = "web"
	n.mustPublish(stays)
	n.mustPublish(forged)
	second := n.canary()
	n.secret("db", map[string]string{"password": second})
	n.arrives(stays, "password", second, healed)
	n.never(forged, "password", second, 3*time.Second)
	n.hasCondition(forged, "the token is not the pod's own")
	n.mustUnpublish(stays)
	n.mustUnpublish(forged)
	n.wantNothingLeft()
}
