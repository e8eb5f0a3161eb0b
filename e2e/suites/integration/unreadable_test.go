package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/status"
)

// TestOneObjectCannotBeRead: the API server can't decrypt one Secret, which 20 volumes show beside two other objects. It is asked for it all
// the same: at each resync, or for a new pod. The volumes keep it and take the changes of the others, also after a restart of the plugin.
func TestOneObjectCannotBeRead(t *testing.T) {
	t.Parallel()
	for detection, rights := range map[string]string{"Watch": shared.kubeconfig, "Get": componentAccount(t, "get")} {
		t.Run(detection, func(t *testing.T) {
			t.Parallel()
			p := newProxiedAs(t, rights, faultproxy.Options{}, "--change-detection="+detection, "--resync-interval=1s", "--publish-wait=3s", anyStatusPort)
			n := p.node
			value := n.canary()
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sealed"}, StringData: map[string]string{"sealed": value}, Immutable: new(true)}
			if _, err := shared.Client().CoreV1().Secrets(n.namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			put := func(object, text string) { n.configMap(object, map[string]string{object: text}) }
			put("app", "1")
			put("other", "1")
			volumes := make([]*harness.Volume, 20)
			shows := func() *harness.Volume {
				return n.volume(map[string]string{"sources": `[{secret: {name: sealed}}, {configMap: {name: app}}, {configMap: {name: other}}]`})
			}
			for i := range volumes {
				volumes[i] = shows()
				n.publishes(volumes[i], soon)
			}
			all := func(path, text string) {
				t.Helper()
				for _, v := range volumes {
					n.arrives(v, path, text, soon)
					n.wantContent(v, "sealed", value)
				}
			}
			p.forgetRequests()
			p.proxy.InjectFor(faultproxy.ServerError, func(r faultproxy.Request) bool { return r.Name == "sealed" })
			late := shows()
			if err := n.Publish(t.Context(), late); err == nil {
				t.Error("a new pod starts with an object that can't be read")
			}
			put("app", "2")
			all("app", "2")
			n.allAre(volumes, "Current", "")

			n.mustKill()
			n.mustStart()
			put("other", "2")
			all("other", "2")
			n.allAre(volumes, "Stale", "sealed")
			p.heal()
			n.publishes(late, soon)
			volumes = slices.Concat(volumes, []*harness.Volume{late})
			all("other", "2")
			n.allAre(volumes, "Current", "")
			for _, v := range volumes {
				n.mustUnpublish(v)
			}
			n.wantNothingLeft()
		})
	}
}

// allAre waits until all volumes have a condition, with a text in its reason.
func (n *node) allAre(volumes []*harness.Volume, condition, text string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		report, err := n.report()
		if err != nil {
			return err
		}
		for _, v := range volumes {
			i := slices.IndexFunc(report.Volumes, func(of status.Volume) bool { return of.VolumeID == v.ID() })
			if i < 0 || report.Volumes[i].Condition != condition || !strings.Contains(report.Volumes[i].Reason, text) {
				return fmt.Errorf("volume %s: %+v, want %s", v.ID(), report.Volumes[max(i, 0)], condition)
			}
		}
		return nil
	})
}
