package integration

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// newPodNode starts a plugin that reads objects with the pods' own tokens, and itself may read none.
func newPodNode(t *testing.T, args ...string) *node {
	t.Helper()
	return newPodNodeWith(t, harness.PluginOptions{Args: args})
}

// newPodNodeWith is newPodNode with other options.
func newPodNodeWith(t *testing.T, o harness.PluginOptions) *node {
	t.Helper()
	if o.Kubeconfig == "" {
		o.Kubeconfig = componentAccount(t, "pod-identity")
	}
	o.Args = append([]string{"--identity=pod", "--cross-namespace", "--resync-interval=1s"}, o.Args...)
	n := newNodeWith(t, o)
	n.source = newNamespace(t)
	return n
}

// account makes a service account, unless there is one.
func (n *node) account(namespace, name string) {
	n.t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := shared.Client().CoreV1().ServiceAccounts(namespace).Create(n.t.Context(), sa, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		n.t.Fatal(err)
	}
}

// pod makes the volume's pod at the API server, as one that was scheduled, and gives the
// volume its UID and a token of its own.
func (n *node) pod(v *harness.Volume) *harness.Volume {
	n.t.Helper()
	n.account(v.Namespace, v.ServiceAccount)
	pod := schedule(n.t, shared.ControlPlane, v.Namespace, corev1.PodSpec{ServiceAccountName: v.ServiceAccount})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	n.renewToken(v, time.Hour)
	return v
}

// renewToken gives the volume another token, as the kubelet does, that is good for some time.
func (n *node) renewToken(v *harness.Volume, life time.Duration) {
	n.t.Helper()
	seconds := int64(life.Seconds())
	request, err := shared.Client().CoreV1().ServiceAccounts(v.Namespace).CreateToken(n.t.Context(), v.ServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: v.Pod, UID: types.UID(v.UID)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	v.Token, v.TokenExpires = request.Status.Token, request.Status.ExpirationTimestamp.Time
}

// own is a volume of one object of the pod's own namespace.
func (n *node) own(kind, name, serviceAccount string) *harness.Volume {
	v := n.volume(map[string]string{map[string]string{"secret": "secret", "configmap": "configMap"}[kind]: name})
	v.ServiceAccount = serviceAccount
	return n.pod(v)
}

// readers is a rule to read objects of a kind as a pod must be able to.
func readers(kind string, names ...string) rbacv1.PolicyRule {
	r := rule(kind, "get", names...)
	r.Verbs = []string{"get", "list", "watch"}
	return r
}

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

// never checks for a while that a file does not get a value.
func (n *node) never(v *harness.Volume, path, value string, during time.Duration) {
	n.t.Helper()
	err := harness.Poll(n.t.Context(), during, 20*time.Millisecond, func() error {
		if got, err := n.content(v, path); err != nil || got != value {
			return errors.Join(errors.New("another value"), err)
		}
		return nil
	})
	if err == nil {
		n.t.Errorf("%s was updated without a token", filepath.Join(n.Target(v), path))
	}
}
