package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestPodTokens: without a token of its own a pod gets nothing.
func TestPodTokens(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, "--publish-wait=2s")
	n.secret("db", map[string]string{"password": n.canary()})
	defer allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))()
	v := n.own("secret", "db", "web")
	harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) })

	none := n.own("secret", "db", "web")
	none.Token = ""
	wantStatus(t, n.Publish(t.Context(), none), codes.InvalidArgument,
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens]: Required value: the CSIDriver object must have tokenRequests: [{audience: ""}] and requiresRepublish: true`)
	bad := n.own("secret", "db", "web")
	bad.Token += "x"
	harness.Eventually(t, soon, func() error { // a busy API server may answer too late to be told of
		err := n.Publish(t.Context(), bad)
		if status.Code(err) != codes.Unavailable {
			t.Fatalf("got %v, want the code Unavailable", err)
		}
		if !strings.Contains(err.Error(), "the API server does not accept the token of pod") {
			return err
		}
		return nil
	})
	// Where the CSIDriver lacks podInfoOnMount, a pod's author may claim anything.
	forged := n.own("secret", "db", "other")
	forged.ServiceAccount, forged.Unknown = "web", true
	wantStatus(t, n.finalAnswer(forged), codes.PermissionDenied, "the token is not the pod's own")
	stranger := n.own("secret", "db", "web")
	stranger.UID, stranger.Unknown = n.own("secret", "db", "web").UID, true
	wantStatus(t, n.finalAnswer(stranger), codes.PermissionDenied, "it is bound to another pod")

	// Tokens in the secrets come first.
	both := n.own("secret", "db", "web")
	both.TokenInSecrets = true
	request := n.PublishRequest(both)
	request.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = "{}"
	if err := n.Prepare(both); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, soon, func() error {
		_, err := n.Node().NodePublishVolume(t.Context(), request)
		return err
	})
	n.mustUnpublish(both)
	n.mustUnpublish(v)
	if err := n.CleanUp(bad); err != nil { // no final answer
		t.Error(err)
	}
	n.wantNothingLeft()
}

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

// TestIdentityIsSwitched: where the plugin ceases to read with its own rights, a running pod's volume goes on with the pod's,
// as far as these reach.
func TestIdentityIsSwitched(t *testing.T) {
	t.Parallel()
	dir := nodeDir(t)
	before := newNodeWith(t, harness.PluginOptions{Dir: dir, Kubeconfig: shared.Kubeconfig})
	first, second, third := before.canary(), before.canary(), before.canary()
	before.secret("db", map[string]string{"password": first})
	before.configMap("app", map[string]string{"setting": "kept"})
	v := before.volume(map[string]string{"sources": "[{secret: {name: db}}, {configMap: {name: app}}]"})
	v.ServiceAccount = "web"
	before.pod(v)
	token := v.Token
	v.Token = ""
	before.mustPublish(v)
	if err := before.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}

	allow(t, before.namespace, readers("secret", "db"), account(before.namespace, "web"), account(before.namespace, "other"))
	after := newNodeWith(t, harness.PluginOptions{
		Dir: dir, Kubeconfig: componentAccount(t, "pod-identity"), Args: []string{"--identity=pod", "--resync-interval=1s"},
	})
	after.namespace = before.namespace
	other := after.volume(map[string]string{"secret": "db"})
	other.ServiceAccount = "other"
	after.mustPublish(after.pod(other))
	for _, value := range []string{second, third} {
		after.secret("db", map[string]string{"password": value})
		after.arrives(other, "password", value, soon)
	}
	after.wantContent(v, "password", first) // the kubelet has brought no token of this pod yet
	v.Token = token
	after.mustPublish(v)
	after.arrives(v, "password", third, soon)
	harness.Eventually(t, soon, func() error {
		if _, err := after.content(v, "setting"); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the setting, which the account may not read: %v", err)
		}
		return nil
	})
	after.mustUnpublish(v)
	after.mustUnpublish(other)
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
	n.hasCondition(forged, "the token is not the pod's own")
	third := n.canary()
	n.secret("db", map[string]string{"password": third})
	n.arrives(stays, "password", third, healed)
	if got, _ := n.content(forged, "password"); got == second || got == third {
		t.Error("the volume was updated with a token of another account")
	}
	n.mustUnpublish(stays)
	n.mustUnpublish(forged)
	n.wantNothingLeft()
}
