package consent

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
	"github.com/refvol/refvol/e2e/tools/world"
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
	read, web, both := world.Readers("secret"), world.Account(namespace, "web"), []string{"plugin", "pod"}
	byName, getAlone, withoutGet := world.Readers("secret", "there", "absent"), world.Readers("secret"), world.Readers("secret")
	getAlone.Verbs, withoutGet.Verbs = []string{"get"}, []string{"list", "watch", "update", "delete", "create"}
	return []grant{
		{name: "none", rule: world.Readers("configMap"), to: web},
		{name: "another account", rule: read, to: world.Account(namespace, "other")},
		{name: "account of this name elsewhere", rule: read, to: world.Account(elsewhere, "web")},
		{name: "group of another namespace", rule: read, to: group("system:serviceaccounts:" + elsewhere)},
		{name: "wrong namespace", rule: read, to: web, isMisplaced: true},
		{name: "wrong verbs", rule: withoutGet, to: web},
		{name: "another name", rule: world.Readers("secret", "another"), to: web},
		{name: "revoked", rule: read, to: web, isRevoked: true},
		{name: "get alone", rule: getAlone, to: web, allows: []string{"plugin"}},
		{name: "cluster role", rule: read, to: web, ofCluster: true, allows: both},
		{name: "group of the namespace", rule: read, to: group("system:serviceaccounts:" + namespace), allows: both},
		{name: "by name", rule: byName, to: web, allows: both},
	}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
}

// make makes the role and its binding, and a Secret, in a namespace of the grant's own, which it returns.
func (g *grant) make(n *world.Node) (source string) {
	n.T.Helper()
	theirs := *n
	theirs.Namespace = lab.NewNamespace(n.T)
	theirs.Secret("there", map[string]string{"key": n.Canary()})
	in := theirs.Namespace
	if g.isMisplaced {
		in = n.Namespace
	}
	var revoke func()
	if g.ofCluster {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{g.rule}}
		role = must.Get(lab.Client().RbacV1().ClusterRoles().Create(n.T.Context(), role, metav1.CreateOptions{}))(n.T)
		revoke = lab.Bind(n.T, in, "ClusterRole", role.Name, g.to)
	} else {
		revoke = lab.Allow(n.T, in, g.rule, g.to)
	}
	if g.isRevoked {
		revoke()
	}
	return theirs.Namespace
}

// TestConsent: a pod gets objects of another namespace by a grant for its account, with the verbs that the identity needs. A refusal
// does not tell whether the object exists. Once the grant is revoked, the file goes.
func TestConsent(t *testing.T) {
	t.Parallel()
	for identity, start := range map[string]func(*testing.T, ...string) *world.Node{"plugin": lab.NewAcrossNode, "pod": lab.NewPodNode} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			n := start(t, "--publish-wait=2s")
			all := grants(n.Namespace, lab.NewNamespace(t))
			sources := make([]string, len(all))
			for i := range all {
				sources[i] = all[i].make(n)
			}
			// Once the API server knows the last grant, which allows, it knows those before it too.
			for i := range slices.Backward(all) {
				t.Log(all[i].name)
				asks(n, sources[i], slices.Contains(all[i].allows, identity))
			}
			for _, strategy := range []string{"Atomic", "InPlace"} {
				withdraws(n, strategy)
			}
			n.WantNothingLeft()
		})
	}
}

// withdraws publishes a volume, has its grant revoked, and waits until no file below its target holds the value, those of earlier
// generations included.
func withdraws(n *world.Node, strategy string) {
	n.T.Helper()
	v, revoke := n.Consented(strategy)
	value := n.Canary()
	n.PutTheirs(value)
	n.Arrives(v, "a", value, world.Soon)
	if leak.CheckFiles(n.Target(v)) == nil {
		n.T.Fatal("the search finds no value before the grant is revoked")
	}
	revoke()
	harness.Eventually(n.T, world.Soon, func() error { return leak.CheckFiles(n.Target(v)) })
	if got, err := n.Content(v, "a"); got != "" || strategy == "Atomic" && !os.IsNotExist(err) {
		n.T.Errorf("%s: the file holds %d bytes: %v", strategy, len(got), err)
	}
	n.HasCondition(v, `service account "web" of the pod may not `)
	n.WantContent(v, "b", "OWN=x\n")
	n.MustUnpublish(v)
}

// asks publishes a volume of a Secret that exists, and one of a Secret that does not.
func asks(n *world.Node, source string, isAllowed bool) {
	n.T.Helper()
	wants := func(name string) *harness.Volume {
		v := n.Volume(map[string]string{"secret": name, "namespace": source})
		v.ServiceAccount = "web"
		return n.Pod(v)
	}
	there, absent := wants("there"), wants("absent")
	if isAllowed {
		n.Publishes(there, world.Soon)
		if got, err := n.Content(there, "key"); got == "" {
			n.T.Errorf("nothing is shown: %v", err)
		}
		n.MustUnpublish(there)
		world.WantStatus(n.T, n.FinalAnswer(absent), codes.NotFound)
		return
	}
	refusals := map[string]bool{}
	for name, v := range map[string]*harness.Volume{"there": there, "absent": absent} {
		err := n.FinalAnswer(v)
		world.WantStatus(n.T, err, codes.PermissionDenied, `service account "web" of the pod may not `)
		refusals[strings.ReplaceAll(status.Convert(err).Message(), "/"+name+`"`, `/NAME"`)] = true
	}
	if len(refusals) != 1 {
		n.T.Errorf("refusals tell whether the object exists: %v", refusals)
	}
}

// TestPodTokens: without a token of its own a pod gets nothing.
func TestPodTokens(t *testing.T) {
	t.Parallel()
	n := lab.NewPodNode(t, "--publish-wait=2s")
	n.Secret("db", map[string]string{"password": n.Canary()})
	defer lab.Allow(t, n.Namespace, world.Readers("secret", "db"), world.Account(n.Namespace, "web"))()
	v := n.Own("web")
	n.Publishes(v, world.Soon)

	none := n.Own("web")
	none.Token = ""
	world.WantStatus(t, n.Publish(t.Context(), none), codes.InvalidArgument,
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens]: Required value: the CSIDriver object must have tokenRequests: [{audience: ""}] and requiresRepublish: true`)
	bad := n.Own("web")
	bad.Token += "x"
	harness.Eventually(t, world.Soon, func() error { // a busy API server may answer too late to be told of
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
	forged := n.Own("other")
	forged.ServiceAccount, forged.Unknown = "web", true
	world.WantStatus(t, n.FinalAnswer(forged), codes.PermissionDenied, "the token is not the pod's own")
	stranger := n.Own("web")
	stranger.UID, stranger.Unknown = n.Own("web").UID, true
	world.WantStatus(t, n.FinalAnswer(stranger), codes.PermissionDenied, "it is bound to another pod")

	// Tokens in the secrets come first.
	both := n.Own("web")
	both.TokenInSecrets = true
	request := n.PublishRequest(both)
	request.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = "{}"
	must.Do(t, n.Prepare(both))
	harness.Eventually(t, world.Soon, func() error {
		_, err := n.CSI().NodePublishVolume(t.Context(), request)
		return err
	})
	n.MustUnpublish(both)
	n.MustUnpublish(v)
	must.Do(t, n.CleanUp(bad)) // no final answer
	n.WantNothingLeft()
}

// TestIdentityIsSwitched: where the plugin ceases to read with its own rights, a running pod's volume goes on with the pod's, as far as these
// reach.
func TestIdentityIsSwitched(t *testing.T) {
	t.Parallel()
	dir := world.NodeDir(t)
	before := lab.NewNodeWith(t, harness.PluginOptions{Dir: dir, Kubeconfig: lab.Kubeconfig})
	first, second := before.Canary(), before.Canary()
	before.Secret("db", map[string]string{"password": first})
	before.ConfigMap("app", map[string]string{"setting": "kept"})
	v := before.Volume(map[string]string{"sources": "[{secret: {name: db}}, {configMap: {name: app}}]"})
	v.ServiceAccount = "web"
	before.Pod(v)
	token := v.Token
	v.Token = ""
	before.MustPublish(v)
	must.Do(t, before.Terminate(t.Context()))

	lab.Allow(t, before.Namespace, world.Readers("secret", "db"), world.Account(before.Namespace, "web"), world.Account(before.Namespace, "other"))
	_, kubeconfig := lab.NewAccount(t, "pod-identity")
	after := lab.NewNodeWith(t, harness.PluginOptions{Dir: dir, Kubeconfig: kubeconfig, Args: []string{"--identity=pod", "--resync-interval=1s"}})
	after.Namespace = before.Namespace
	other := after.Volume(map[string]string{"secret": "db"})
	other.ServiceAccount = "other"
	after.Publishes(after.Pod(other), world.Soon)
	after.Secret("db", map[string]string{"password": second})
	after.Arrives(other, "password", second, world.Soon)
	after.WantContent(v, "password", first) // the kubelet has brought no token of this pod yet
	v.Token = token
	after.MustPublish(v)
	after.Arrives(v, "password", second, world.Soon)
	harness.Eventually(t, world.Soon, func() error {
		if _, err := after.Content(v, "setting"); !os.IsNotExist(err) {
			return fmt.Errorf("the setting, which the account may not read: %w", err)
		}
		return nil
	})
	after.MustUnpublish(v)
	after.MustUnpublish(other)
	after.WantNothingLeft()
}

// TestATakeoverProvesNothing: where the CSIDriver lacks podInfoOnMount, the author of a pod
// whose mount is taken over may claim the account of another one, and gets nothing of it.
func TestATakeoverProvesNothing(t *testing.T) {
	t.Parallel()
	n := lab.NewPodNode(t)
	n.Secret("db", map[string]string{"password": n.Canary()})
	lab.Allow(t, n.Namespace, world.Readers("secret", "db"), world.Account(n.Namespace, "web"))
	revoke := lab.Allow(t, n.Namespace, world.Readers("secret", "db"), world.Account(n.Namespace, "other"))
	stays, forged := n.Own("web"), n.Own("other")
	n.Publishes(stays, world.Soon)
	n.Publishes(forged, world.Soon)
	n.MustKill()
	revoke()
	must.Do(t, lab.DeletePod(t.Context(), forged.Namespace, forged.Pod))
	n.MustStart()
	forged.ServiceAccount = "web"
	n.MustPublish(stays)
	n.MustPublish(forged)
	second := n.Canary()
	n.Secret("db", map[string]string{"password": second})
	n.Arrives(stays, "password", second, world.Healed)
	n.HasCondition(forged, "the token is not the pod's own")
	third := n.Canary()
	n.Secret("db", map[string]string{"password": third})
	n.Arrives(stays, "password", third, world.Healed)
	if got, _ := n.Content(forged, "password"); got == second || got == third {
		t.Error("the volume was updated with a token of another account")
	}
	n.MustUnpublish(stays)
	n.MustUnpublish(forged)
	n.WantNothingLeft()
}
