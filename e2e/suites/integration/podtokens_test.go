package integration

import (
	"errors"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// rejected waits until the API server accepts the volume's token no longer. It keeps what
// it knows of a token for ten seconds.
func (n *node) rejected(v *harness.Volume) {
	n.t.Helper()
	harness.Eventually(n.t, 2*soon, func() error {
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
	behind := newProxiedAs(t, componentAccount(t, "pod-identity"), "--identity=pod", "--resync-interval=1s")
	n := behind.node
	n.secret("db", map[string]string{"password": n.canary()})
	allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
	stays, goes := n.own("secret", "db", "web"), n.own("secret", "db", "web")
	goes.TokenInSecrets = true
	harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), stays) })
	n.renewToken(goes, 2*time.Hour) // what is good for longest is the first choice
	n.mustPublish(goes)

	n.forgetPod(goes)
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

// TestIdentityIsSwitched: where the plugin ceases to read with its own rights, a running
// pod's volume goes on with the pod's, as far as these reach.
func TestIdentityIsSwitched(t *testing.T) {
	t.Parallel()
	dir := nodeDir(t)
	before := newNodeWith(t, harness.PluginOptions{Dir: dir, Kubeconfig: shared.kubeconfig})
	first, second := before.canary(), before.canary()
	before.secret("db", map[string]string{"password": first})
	before.configMap("app", map[string]string{"setting": "kept"})
	attributes := map[string]string{"sources": "[{secret: {name: db}}, {configMap: {name: app}}]"}
	v := before.volume(attributes)
	v.ServiceAccount = "web"
	n := before
	n.pod(v)
	token := v.Token
	v.Token = ""
	before.mustPublish(v)
	if err := before.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}

	allow(t, before.namespace, readers("secret", "db"), account(before.namespace, "web"))
	after := newPodNodeWith(t, harness.PluginOptions{Dir: dir})
	after.namespace = before.namespace
	after.secret("db", map[string]string{"password": second})
	after.never(v, "password", second, 2*time.Second)
	after.hasCondition(v, "")
	v.Token = token
	after.mustPublish(v)
	// The account may have the one and not the other.
	after.arrives(v, "password", second, soon)
	after.vanishes(v, "setting", soon)
	allow(t, before.namespace, readers("configmap", "app"), account(before.namespace, "web"))
	after.arrives(v, "setting", "kept", soon)
	after.mustUnpublish(v)
	after.wantNothingLeft()
}

// TestATakeoverProvesNothing: where the CSIDriver lacks podInfoOnMount, the author of a pod
// whose mount is taken over may claim the account of another one, and gets nothing of it.
func TestATakeoverProvesNothing(t *testing.T) {
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
	n.forgetPod(forged)
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
