package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

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
	for identity, test := range map[string]struct {
		// make returns an account's name and kubeconfig.
		make   func(t *testing.T) (name, kubeconfig string)
		volume func(n *node, configMap string) *harness.Volume
		lost   []string
	}{
		"plugin": {
			func(t *testing.T) (name, kubeconfig string) {
				name = uniqueName("plugin")
				return name, newAccount(t, name, base)
			},
			(*node).short,
			[]string{"list of configmaps", "watch of configmaps", "list of secrets", "watch of secrets", "get of pods", "create of events", "patch of events"},
		},
		"node": {
			func(t *testing.T) (name, kubeconfig string) {
				pod, kubeconfig := pluginPod(t, harness.NodeName, asNodeRules(t))
				return pod.Spec.ServiceAccountName, kubeconfig
			},
			func(n *node, configMap string) *harness.Volume {
				return n.shown(nativeConfigMap(configMap), volumeSource())
			},
			[]string{
				"impersonate:associated-node of nodes", "impersonate-on:associated-node:get of pods",
				"impersonate-on:associated-node:list of configmaps", "impersonate-on:associated-node:watch of configmaps",
				"impersonate-on:associated-node:list of secrets", "impersonate-on:associated-node:watch of secrets",
				"create of events", "patch of events",
			},
		},
	} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			account, kubeconfig := test.make(t)
			n := readyNode(t, harness.PluginOptions{Kubeconfig: kubeconfig, Args: []string{"--identity=" + identity, "--publish-wait=1s", anyStatusPort}})
			n.becomes()
			value := n.value("app")
			shows, ends := test.volume(n, "app"), test.volume(n, "app")
			n.publishes(shows, soon)
			n.publishes(ends, soon)
			n.lacks()

			bindings := shared.Client().RbacV1().ClusterRoleBindings()
			binding, err := bindings.Get(t.Context(), account, metav1.GetOptions{})
			if err := errors.Join(err, bindings.Delete(t.Context(), account, metav1.DeleteOptions{})); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			var late *harness.Volume
			tries := 0
			harness.Eventually(t, soon, func() error { // the API server hears of the end by a watch
				tries++
				name := fmt.Sprint("late-", tries)
				n.value(name)
				late = test.volume(n, name)
				published := n.Publish(t.Context(), late) == nil
				if published {
					n.mustUnpublish(late)
					return fmt.Errorf("%s is published without rights", late.ID())
				}
				return nil
			})
			n.becomes("[-]rights: ", strings.TrimSuffix(strings.Join(test.lost, ", "), ", create of events, patch of events")+": grant them")
			t.Logf("it says so %s after the end of the binding", time.Since(begin).Round(time.Millisecond))
			n.lacks(test.lost...)
			n.counts(map[series]float64{
				`refvol_rights{right="create of events"}`: 0, "refvol_rights": 0, `refvol_ready{condition="rights"}`: 0,
			})
			if out, _, exit := n.runStatus(); exit != 1 || !strings.Contains(out, "lacks rights: "+strings.Join(test.lost, ", ")) {
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
			n.counts(map[series]float64{`refvol_rights{right="create of events"}`: 1, "refvol_rights": float64(len(test.lost))})
			n.publishes(late, soon)
			n.mustUnpublish(late)
			n.mustUnpublish(shows)
		})
	}
}
