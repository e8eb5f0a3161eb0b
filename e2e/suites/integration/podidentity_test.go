package integration

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// podNode is a plugin that reads objects with the pods' own tokens, and itself may read
// none.
type podNode struct {
	*acrossNode
}

func newPodNode(t *testing.T, args ...string) *podNode {
	t.Helper()
	return newPodNodeWith(t, harness.PluginOptions{Args: args})
}

// newPodNodeWith is newPodNode with other options.
func newPodNodeWith(t *testing.T, o harness.PluginOptions) *podNode {
	t.Helper()
	if o.Kubeconfig == "" {
		o.Kubeconfig = componentAccount(t, "pod-identity")
	}
	o.Args = append([]string{"--identity=pod", "--cross-namespace", "--resync-interval=1s"}, o.Args...)
	return &podNode{&acrossNode{node: newNodeWith(t, o), source: newNamespace(t)}}
}

// account makes a service account, unless there is one.
func (n *podNode) account(namespace, name string) {
	n.t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := shared.Client().CoreV1().ServiceAccounts(namespace).Create(n.t.Context(), sa, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		n.t.Fatal(err)
	}
}

// pod makes the volume's pod at the API server, as one that was scheduled, and gives the
// volume its UID and a token of its own.
func (n *podNode) pod(v *harness.Volume) *harness.Volume {
	n.t.Helper()
	n.account(v.Namespace, v.ServiceAccount)
	automount := false
	pods := shared.Client().CoreV1().Pods(v.Namespace)
	var pod *corev1.Pod
	harness.Eventually(n.t, soon, func() (err error) { // the API server hears of the account by a watch
		pod, err = pods.Create(n.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
			Spec: corev1.PodSpec{
				ServiceAccountName: v.ServiceAccount, AutomountServiceAccountToken: &automount, NodeName: harness.NodeName,
				Containers: []corev1.Container{{Name: "main", Image: "none"}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	n.renewToken(v, time.Hour)
	return v
}

// renewToken gives the volume another token, as the kubelet does, that is good for some time.
func (n *podNode) renewToken(v *harness.Volume, life time.Duration) {
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

// removePod removes the volume's pod from the API server.
func (n *podNode) removePod(v *harness.Volume) {
	n.t.Helper()
	now := int64(0)
	if err := shared.Client().CoreV1().Pods(v.Namespace).Delete(n.t.Context(), v.Pod, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		n.t.Fatal(err)
	}
}

// own is a volume of one object of the pod's own namespace.
func (n *podNode) own(kind, name, serviceAccount string) *harness.Volume {
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

// TestPodIdentity grants, shares, revokes and grants again.
func TestPodIdentity(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, "--logging-format=json", "--http-address=127.0.0.1:0")
	first, second := n.canary(), n.canary()
	n.secret("db", map[string]string{"password": first})
	refusal := fmt.Sprintf(`secret: Forbidden: service account "web" of the pod may not get, list and watch Secret "%s/db"; whoever owns namespace %q consents by a Role and a RoleBinding there`, n.namespace, n.namespace)
	refused := n.own("secret", "db", "web")
	wantStatus(t, n.Publish(t.Context(), refused), codes.PermissionDenied, refusal)
	n.hasEvent(refused, "RefForbidden", refusal)
	n.wantNothingLeft()

	revoke := allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
	v, other := n.own("secret", "db", "web"), n.own("secret", "db", "web")
	other.TokenInSecrets = true
	harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) })
	n.mustPublish(other)
	n.wantContent(v, "password", first)
	// What one account was told is nobody else's.
	wantStatus(t, n.Publish(t.Context(), n.own("secret", "db", "other")), codes.PermissionDenied, `service account "other"`)
	n.secret("db", map[string]string{"password": second})
	n.arrives(v, "password", second, soon)
	n.arrives(other, "password", second, soon)

	n.renewToken(v, time.Hour)
	n.mustPublish(v)
	v.Token = ""
	n.mustPublish(v) // as when the CSIDriver object lost its tokenRequests
	revoke()
	n.vanishes(v, "password", soon)
	n.vanishes(other, "password", soon)
	n.hasCondition(v, refusal)
	third := n.canary()
	n.secret("db", map[string]string{"password": third})
	defer allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))()
	n.arrives(v, "password", third, soon)
	n.arrives(other, "password", third, soon)
	n.mustUnpublish(v)
	n.mustUnpublish(other)
	n.wantNothingLeft()
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

// TestIdentityOfPodsAfterARestart: tokens are in memory only, so updates go on with the next
// republish, and until then that is no fault of the volume.
func TestIdentityOfPodsAfterARestart(t *testing.T) {
	for _, strategy := range []string{"Watch", "Cache", "Get"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			n := newPodNode(t, "--change-detection="+strategy)
			first, second := n.canary(), n.canary()
			n.secret("db", map[string]string{"password": first})
			defer allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))()
			v := n.own("secret", "db", "web")
			harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) })
			n.mustKill()
			n.mustStart()
			n.secret("db", map[string]string{"password": second})
			n.never(v, "password", second, 3*time.Second)
			n.hasCondition(v, "")
			n.mustPublish(v)
			n.arrives(v, "password", second, soon)
			n.wantContent(v, "password", second)
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}

// never checks for a while that a file does not get a value.
func (n *podNode) never(v *harness.Volume, path, value string, during time.Duration) {
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

// TestPodIdentityNeedsEveryVerb: a pod may have what it may get, list and watch, however
// the API server would answer a request that takes less.
func TestPodIdentityNeedsEveryVerb(t *testing.T) {
	t.Parallel()
	watching, getting := newPodNode(t), newPodNode(t, "--change-detection=Get")
	verbs := []string{"get", "list", "watch"}
	for i := range 1 << len(verbs) {
		var some []string
		for j, verb := range verbs {
			if i>>j&1 == 1 {
				some = append(some, verb)
			}
		}
		name := fmt.Sprintf("subset-%d", i)
		for _, n := range []*podNode{watching, getting} {
			n.put("secret", name, "x")
			web := account(n.namespace, "web")
			if len(some) > 0 {
				r := rule("secret", "", name)
				r.Verbs = some
				allow(t, n.source, r, web)
			}
			v := n.pod(n.webOf(name))
			for _, verb := range verbs {
				n.settlesVerb(v, "secret", name, verb, slices.Contains(some, verb))
			}
			err := n.Publish(t.Context(), v)
			want := codes.PermissionDenied
			if len(some) == len(verbs) || n == getting && slices.Contains(some, "get") {
				want = codes.OK
			}
			if status.Code(err) != want {
				t.Errorf("%q, getting %t: got %v, want %s", some, n == getting, err, want)
			}
			if err == nil {
				n.mustUnpublish(v)
			}
		}
	}
}

// webOf is a volume of one Secret of the source namespace for the account web.
func (n *podNode) webOf(name string) *harness.Volume {
	v := n.volume(map[string]string{"secret": name, "namespace": n.source})
	v.ServiceAccount = "web"
	return v
}

// settlesVerb waits until the API server has taken in a change of the roles: its authorizer
// reads them by a watch.
func (n *podNode) settlesVerb(v *harness.Volume, kind, object, verb string, want bool) {
	n.t.Helper()
	n.settlesIn(n.source, v, kind, object, verb, want)
}

// settlesIn is settlesVerb for an object of another namespace than the source.
func (n *podNode) settlesIn(namespace string, v *harness.Volume, kind, object, verb string, want bool) {
	n.t.Helper()
	settles(n.t, v.Namespace, v.ServiceAccount, &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: verb, Resource: kind + "s", Name: object,
	}, want)
}
