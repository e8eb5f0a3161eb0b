package integration

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
)

// TestPlantedLeaks sees to it that each search finds what is there to be found: what a plugin rightly shows of a pod or of
// the node is a value or a token here. The plugins are no nodes, whose tests would fail.
func TestPlantedLeaks(t *testing.T) {
	t.Parallel()
	find := func(err error, where string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("got %v, want a leak in %s", err, where)
		}
	}
	namespace := newNamespace(t)
	for what, planted := range map[string]string{"value": leak.NewValue(), "token": leak.NewToken()} {
		p, err := harness.StartPlugin(t.Context(), harness.PluginOptions{
			Binary: shared.Plugin, Kubeconfig: shared.Kubeconfig, Dir: nodeDir(t), Env: []string{"PASSWORD=" + planted},
			Args: []string{"-v=10", anyStatusPort, "--node-name=" + planted},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		err = p.Publish(t.Context(), harness.NewVolume(namespace, "pod", map[string]string{"defaultMode": planted, "configMap": "app"}))
		err = errors.Join(err, p.ShownLeaks(t.Context()))
		for _, where := range []string{"/environ", "/cmdline", "/status", "the answer to NodePublishVolume"} {
			find(err, where+" leaks a "+what)
		}
		find(p.DiskLeaks(), p.LogPath()+" leaks a "+what)

		// An event names a path.
		v := harness.NewVolume(namespace, "pod", map[string]string{
			"sources": "- env: {path: " + leak.NewValue() + ", env: [{name: NOT.FOR.FILES, value: x}]}",
		})
		if err := p.Publish(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, soon, func() error {
			events, err := harness.EventLeaks(t.Context(), shared.Client(), namespace)
			if events == 0 {
				return errors.New("no event yet")
			}
			find(err, "leaks a value")
			return nil
		})
		// The whole run's events are searched at its end, and none must come after these have gone.
		if err := errors.Join(p.Unpublish(t.Context(), v), p.Kill(),
			shared.Client().CoreV1().Events(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})); err != nil {
			t.Error(err)
		}
	}
}
