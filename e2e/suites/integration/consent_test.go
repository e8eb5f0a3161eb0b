package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

// grant is one way to give the account "web" of a node's namespace rights on the Secrets of another namespace.
type grant struct {
	name string
	rule rbacv1.PolicyRule
	to   rbacv1.Subject
	// isMisplaced means that the role is in the pods' namespace, ofCluster that it is a ClusterRole, and isRevoked that the binding is
	// taken away before anybody asks.
	isMisplaced, ofCluster, isRevoked bool
	// allows are the identities with which a pod gets the Secrets.
	allows []string
}

// grants returns what TestConsent tries. The last one allows.
func grants(namespace, elsewhere string) []grant {
	read, web, both := readers("secret"), account(namespace, "web"), []string{"plugin", "pod"}
	byName, getAlone, withoutGet := readers("secret", "there", "absent"), rule("secret", "get"), rule("secret", "list")
	withoutGet.Verbs = []string{"list", "watch", "update", "delete", "create"}
	return []grant{
		{name: "none", rule: readers("configMap"), to: web},
		{name: "another account", rule: read, to: account(namespace, "other")},
		{name: "account of this name elsewhere", rule: read, to: account(elsewhere, "web")},
		{name: "group of another namespace", rule: read, to: group("system:serviceaccounts:" + elsewhere)},
		{name: "wrong namespace", rule: read, to: web, isMisplaced: true},
		{name: "wrong verbs", rule: withoutGet, to: web},
		{name: "another name", rule: readers("secret", "another"), to: web},
		{name: "revoked", rule: read, to: web, isRevoked: true},
		{name: "get alone", rule: getAlone, to: web, allows: []string{"plugin"}},
		{name: "cluster role", rule: read, to: web, ofCluster: true, allows: both},
		{name: "group of the namespace", rule: read, to: group("system:serviceaccounts:" + namespace), allows: both},
		{name: "by name", rule: byName, to: web, allows: both},
	}
}

// make makes the role and its binding, and a Secret, in a namespace of the grant's own, which it returns.
func (g *grant) make(n *node) (source string) {
	n.t.Helper()
	theirs := *n
	theirs.namespace = newNamespace(n.t)
	theirs.secret("there", map[string]string{"key": n.canary()})
	in := theirs.namespace
	if g.isMisplaced {
		in = n.namespace
	}
	var revoke func()
	if g.ofCluster {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{g.rule}}
		role = must.Get(shared.Client().RbacV1().ClusterRoles().Create(n.t.Context(), role, metav1.CreateOptions{}))(n.t)
		revoke = bind(n.t, in, "ClusterRole", role.Name, g.to)
	} else {
		revoke = allow(n.t, in, g.rule, g.to)
	}
	if g.isRevoked {
		revoke()
	}
	return theirs.namespace
}

// TestConsent: a pod gets objects of another namespace by a grant for its account, with the verbs that the identity needs. A refusal
// does not tell whether the object exists. Once the grant is revoked, the file goes.
func TestConsent(t *testing.T) {
	t.Parallel()
	for identity, start := range map[string]func(*testing.T, ...string) *node{"plugin": newAcrossNode, "pod": newPodNode} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			n := start(t, "--publish-wait=2s")
			all := grants(n.namespace, newNamespace(t))
			sources := make([]string, len(all))
			for i := range all {
				sources[i] = all[i].make(n)
			}
			// Once the API server knows the last grant, which allows, it knows those before it too.
			for i := range slices.Backward(all) {
				t.Log(all[i].name)
				n.asks(sources[i], slices.Contains(all[i].allows, identity))
			}
			for _, strategy := range []string{"Atomic", "InPlace"} {
				n.withdraws(strategy)
			}
			n.wantNothingLeft()
		})
	}
}

// withdraws publishes a volume, has its grant revoked, and waits until no file below its target holds the value, those of earlier
// generations included.
func (n *node) withdraws(strategy string) {
	n.t.Helper()
	v, revoke := n.consented(strategy)
	value := n.canary()
	n.putTheirs(value)
	n.arrives(v, "a", value, soon)
	if leak.CheckFiles(n.Target(v)) == nil {
		n.t.Fatal("the search finds no value before the grant is revoked")
	}
	revoke()
	harness.Eventually(n.t, soon, func() error { return leak.CheckFiles(n.Target(v)) })
	if got, err := n.content(v, "a"); got != "" || strategy == "Atomic" && !os.IsNotExist(err) {
		n.t.Errorf("%s: the file holds %d bytes: %v", strategy, len(got), err)
	}
	n.hasCondition(v, `service account "web" of the pod may not `)
	n.wantContent(v, "b", "OWN=x\n")
	n.mustUnpublish(v)
}

// asks publishes a volume of a Secret that exists, and one of a Secret that does not.
func (n *node) asks(source string, isAllowed bool) {
	n.t.Helper()
	wants := func(name string) *harness.Volume {
		v := n.volume(map[string]string{"secret": name, "namespace": source})
		v.ServiceAccount = "web"
		return n.pod(v)
	}
	there, absent := wants("there"), wants("absent")
	if isAllowed {
		n.publishes(there, soon)
		if got, err := n.content(there, "key"); got == "" {
			n.t.Errorf("nothing is shown: %v", err)
		}
		n.mustUnpublish(there)
		wantStatus(n.t, n.finalAnswer(absent), codes.NotFound)
		return
	}
	refusals := map[string]bool{}
	for name, v := range map[string]*harness.Volume{"there": there, "absent": absent} {
		err := n.finalAnswer(v)
		wantStatus(n.t, err, codes.PermissionDenied, `service account "web" of the pod may not `)
		refusals[strings.ReplaceAll(status.Convert(err).Message(), "/"+name+`"`, `/NAME"`)] = true
	}
	if len(refusals) != 1 {
		n.t.Errorf("refusals tell whether the object exists: %v", refusals)
	}
}

// TestPodTokens: without a token of its own a pod gets nothing.
func TestPodTokens(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, "--publish-wait=2s")
	n.secret("db", map[string]string{"password": n.canary()})
	defer allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))()
	v := n.own("web")
	n.publishes(v, soon)

	none := n.own("web")
	none.Token = ""
	wantStatus(t, n.Publish(t.Context(), none), codes.InvalidArgument,
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens]: Required value: the CSIDriver object must have tokenRequests: [{audience: ""}] and requiresRepublish: true`)
	bad := n.own("web")
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
	forged := n.own("other")
	forged.ServiceAccount, forged.Unknown = "web", true
	wantStatus(t, n.finalAnswer(forged), codes.PermissionDenied, "the token is not the pod's own")
	stranger := n.own("web")
	stranger.UID, stranger.Unknown = n.own("web").UID, true
	wantStatus(t, n.finalAnswer(stranger), codes.PermissionDenied, "it is bound to another pod")

	// Tokens in the secrets come first.
	both := n.own("web")
	both.TokenInSecrets = true
	request := n.PublishRequest(both)
	request.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = "{}"
	must.Do(t, n.Prepare(both))
	harness.Eventually(t, soon, func() error {
		_, err := n.Node().NodePublishVolume(t.Context(), request)
		return err
	})
	n.mustUnpublish(both)
	n.mustUnpublish(v)
	must.Do(t, n.CleanUp(bad)) // no final answer
	n.wantNothingLeft()
}

// TestIdentityIsSwitched: where the plugin ceases to read with its own rights, a running pod's volume goes on with the pod's, as far as these
// reach.
func TestIdentityIsSwitched(t *testing.T) {
	t.Parallel()
	dir := nodeDir(t)
	before := newNodeWith(t, harness.PluginOptions{Dir: dir, Kubeconfig: shared.Kubeconfig})
	first, second := before.canary(), before.canary()
	before.secret("db", map[string]string{"password": first})
	before.configMap("app", map[string]string{"setting": "kept"})
	v := before.volume(map[string]string{"sources": "[{secret: {name: db}}, {configMap: {name: app}}]"})
	v.ServiceAccount = "web"
	before.pod(v)
	token := v.Token
	v.Token = ""
	before.mustPublish(v)
	must.Do(t, before.Terminate(t.Context()))

	allow(t, before.namespace, readers("secret", "db"), account(before.namespace, "web"), account(before.namespace, "other"))
	_, kubeconfig := newAccount(t, "pod-identity")
	after := newNodeWith(t, harness.PluginOptions{Dir: dir, Kubeconfig: kubeconfig, Args: []string{"--identity=pod", "--resync-interval=1s"}})
	after.namespace = before.namespace
	other := after.volume(map[string]string{"secret": "db"})
	other.ServiceAccount = "other"
	after.publishes(after.pod(other), soon)
	after.secret("db", map[string]string{"password": second})
	after.arrives(other, "password", second, soon)
	after.wantContent(v, "password", first) // the kubelet has brought no token of this pod yet
	v.Token = token
	after.mustPublish(v)
	after.arrives(v, "password", second, soon)
	harness.Eventually(t, soon, func() error {
		if _, err := after.content(v, "setting"); !os.IsNotExist(err) {
			return fmt.Errorf("the setting, which the account may not read: %w", err)
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
	stays, forged := n.own("web"), n.own("other")
	n.publishes(stays, soon)
	n.publishes(forged, soon)
	n.mustKill()
	revoke()
	must.Do(t, shared.DeletePod(t.Context(), forged.Namespace, forged.Pod))
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
