package integration

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// readyNode starts a plugin that says on a port whether it is ready, without a kubelet that registers it.
func readyNode(t *testing.T, kubeconfig string, args ...string) *node {
	t.Helper()
	return newNodeAs(t, kubeconfig, append([]string{"--registration-dir=", anyPort}, args...)...)
}

// becomes waits until the plugin is ready, or not ready for the reasons.
func (n *node) becomes(reasons ...string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		err := n.ready()
		switch {
		case (err == nil) != (len(reasons) == 0):
			return fmt.Errorf("ready: %w, want %q", errors.Join(err), reasons)
		case err == nil:
			return nil
		case strings.Count(err.Error(), "\n") != 3:
			return fmt.Errorf("%q is not a line for each condition", err)
		}
		for _, reason := range reasons {
			if !strings.Contains(err.Error(), reason) {
				return fmt.Errorf("ready: %q, want %q in it", err, reason)
			}
		}
		return nil
	})
}

// TestNeedsItsRights: the plugin says which right, token or node is wrong, as far as its identity needs them.
func TestNeedsItsRights(t *testing.T) {
	t.Parallel()
	_, whole := pluginPod(t, harness.NodeName)
	powerless := filepath.Join(t.TempDir(), "kubeconfig") // of an account without any right
	if _, err := harness.MakeAccount(t.Context(), shared.ControlPlane, "powerless", powerless); err != nil {
		t.Fatal(err)
	}
	const lacks = "[-]rights: the plugin's account lacks rights in all namespaces that "
	for name, test := range map[string]struct {
		kubeconfig string
		args       []string
		// reasons are those for which the plugin is not ready.
		reasons []string
	}{
		"node": {whole, []string{"--identity=node"}, nil},
		"node, another": {whole, []string{"--identity=node", "--node-name=" + otherNode}, []string{
			`the plugin's token is that of a pod on node "node-1", and --node-name is "node-2": it may impersonate its own node only`,
		}},
		"node, not a pod's": {powerless, []string{"--identity=node"}, []string{
			`the plugin's credential, of "system:serviceaccount:refvol-system:powerless", is not bound to a pod`,
		}},
		"none": {powerless, []string{"--identity=plugin"}, []string{
			lacks + "--identity=plugin needs: list of configmaps, watch of configmaps, list of secrets, watch of secrets, get of pods: grant them, or choose another identity",
		}},
		"pod": {componentAccount(t, "pod-identity"), []string{"--identity=pod"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readyNode(t, test.kubeconfig, test.args...).becomes(test.reasons...)
		})
	}
}

// lacks waits until the status names just these rights as missing.
func (n *node) lacks(rights ...string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		report, err := n.report()
		if err == nil && !slices.Equal(report.MissingRights, rights) {
			err = fmt.Errorf("the status lacks %q, want %q", report.MissingRights, rights)
		}
		return err
	})
}

// TestLostRights: a plugin whose rights are taken away says so as soon as the API server refuses it something,
// and when it has them again. Meanwhile running pods keep their files, and can end.
func TestLostRights(t *testing.T) {
	t.Parallel()
	base, err := harness.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lost := []string{"list of configmaps", "watch of configmaps", "list of secrets", "watch of secrets", "get of pods", "create of events", "patch of events"}
	account := uniqueName("plugin")
	n := readyNode(t, newAccount(t, account, base), "--identity=plugin", "--publish-wait=1s")
	n.becomes()
	value := n.value("app")
	shows, ends := n.short("app"), n.short("app")
	n.publishes(shows, soon)
	n.publishes(ends, soon)
	n.lacks()

	bindings := shared.Client().RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(t.Context(), account, metav1.GetOptions{})
	if err := errors.Join(err, bindings.Delete(t.Context(), account, metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	var late *harness.Volume
	harness.Eventually(t, soon, func() error { // the API server hears of the end by a watch
		name := uniqueName("late")
		n.value(name)
		late = n.short(name)
		isPublished := n.Publish(t.Context(), late) == nil
		if isPublished {
			n.mustUnpublish(late)
			return fmt.Errorf("%s is published without rights", late.ID())
		}
		return nil
	})
	n.becomes("[-]rights: ", strings.TrimSuffix(strings.Join(lost, ", "), ", create of events, patch of events")+": grant them")
	n.lacks(lost...)
	n.counts(map[series]float64{
		`refvol_rights{right="create of events"}`: 0, "refvol_rights": 0, `refvol_ready{condition="rights"}`: 0,
	})
	if out, _, exit := n.runStatus(); exit != 1 || !strings.Contains(out, "lacks rights: "+strings.Join(lost, ", ")) {
		t.Errorf("the status ends with %d and says\n%s", exit, out)
	}
	n.wantContent(shows, "key", value)
	n.mustUnpublish(ends)

	binding.ObjectMeta = metav1.ObjectMeta{Name: account}
	if _, err := bindings.Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.becomes()
	n.lacks()
	n.counts(map[series]float64{`refvol_rights{right="create of events"}`: 1, "refvol_rights": float64(len(lost))})
	n.publishes(late, soon)
	n.mustUnpublish(late)
	n.mustUnpublish(shows)
}
