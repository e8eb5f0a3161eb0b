package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// neededRights are those without which a plugin that reads with its own rights is not ready, wantedRights the others.
const neededRights, wantedRights = "list of configmaps, watch of configmaps, list of secrets, watch of secrets, get of pods", "create of events, patch of events"

// hasRights waits until /readyz, the status and the metrics say that the plugin has all its rights, or none.
func hasRights(n *world.Node, all bool) {
	n.T.Helper()
	rights := strings.Split(neededRights+", "+wantedRights, ", ")
	code, line, missing, count := 200, "[+]rights ok\n", []string(nil), float64(len(rights))
	if !all {
		code, missing, count = 503, rights, 0
		line = "[-]rights: the plugin's account lacks rights in all namespaces that --identity=plugin needs: " + neededRights + ": grant them, "
	}
	harness.Eventually(n.T, world.Soon, func() error {
		readyz := must.Get(harness.Get(n.T.Context(), "http://"+n.Address(n.HTTPAddress)+"/readyz"))(n.T)
		if readyz.Status != code || !strings.Contains(readyz.Body, line) {
			return fmt.Errorf("/readyz answers %d %q, want %d with %q", readyz.Status, readyz.Body, code, line)
		}
		if report := must.Get(n.Report())(n.T); !slices.Equal(report.MissingRights, missing) {
			return fmt.Errorf("the status lacks %q, want %q", report.MissingRights, missing)
		}
		return nil
	})
	n.Counts(map[world.Series]float64{"refvol_rights": count, `refvol_ready{condition="rights"}`: min(count, 1)})
}

// TestLostRights: a plugin whose rights are taken away says so as soon as the API server refuses it something, and when it has them again.
// Meanwhile running pods keep their files, and can end.
func TestLostRights(t *testing.T) {
	t.Parallel()
	account, kubeconfig := lab.NewAccount(t)
	n := lab.NewNodeAs(t, kubeconfig, "--registration-dir=", "--identity=plugin", "--publish-wait=1s", world.AnyPort)
	hasRights(n, true)
	value := n.Value("app")
	shows, ends, late := n.Short("app"), n.Short("app"), n.Short("late")
	n.Publishes(shows, world.Soon)
	n.Publishes(ends, world.Soon)

	bindings := lab.Client().RbacV1().ClusterRoleBindings()
	binding := must.Get(bindings.Get(t.Context(), account, metav1.GetOptions{}))(t)
	must.Do(t, bindings.Delete(t.Context(), account, metav1.DeleteOptions{}))
	harness.Eventually(t, world.Soon, func() error { // the API server hears of the end by a watch
		if code := status.Code(n.Publish(t.Context(), late)); code != codes.PermissionDenied {
			return fmt.Errorf("a publish has the answer %s, want a refusal", code)
		}
		return nil
	})
	hasRights(n, false)
	n.WantContent(shows, "key", value)
	n.MustUnpublish(ends)

	binding.ObjectMeta = metav1.ObjectMeta{Name: account}
	must.Get(bindings.Create(t.Context(), binding, metav1.CreateOptions{}))(t)
	hasRights(n, true)
	n.Value("late")
	n.Publishes(late, world.Soon)
	n.UnpublishAll([]*harness.Volume{shows, late})
}
