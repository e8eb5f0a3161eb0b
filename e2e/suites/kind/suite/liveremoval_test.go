package suite

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// liveWorkload is a workload with a native volume, whose pods run on every node that they may.
const liveWorkload = `apiVersion: apps/v1
kind: %[1]s
metadata: {name: app}
spec:
  selector: {matchLabels: {kind: %[1]s}}
  template:
    metadata: {labels: {kind: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 5
      tolerations: [{operator: Exists}]
      containers:
      - {name: probe, image: %[2]s, imagePullPolicy: IfNotPresent, args: [sleep], volumeMounts: [{name: settings, mountPath: /volumes/settings}]}
      volumes: [{name: settings, configMap: {name: settings}}]
`

// TestLiveNamespaceRemoval installs the chart beside workloads of a live namespace, and removes it in a wrong order and in the right one.
func TestLiveNamespaceRemoval(t *testing.T) {
	t.Parallel()
	s := newInstaller(t, "lives")
	n := s.pods
	n.needsPolicies()
	t.Cleanup(func() { // Helm keeps these
		if err := kubectl(context.WithoutCancel(t.Context()), "delete", "--ignore-not-found", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "lives-live-update"); err != nil {
			t.Error(err)
		}
	})
	n.kubectl("label", "namespace", n.name, s.driver+"/live=true")
	n.setConfigMap("settings", object{"key": "first"})
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		s.apply(fmt.Sprintf(liveWorkload, kind, os.Getenv("REFVOL_PROBE_IMAGE")))
	}
	n.rolled("history")
	before := n.running()

	const release = " refvol deploy/charts/refvol --set image.registry=registry.example.com,image.tag=v0.1.0,image.pullPolicy=IfNotPresent"
	s.output("helm install" + release + ",live.enabled=true,liveNodeSelector.enabled=true --namespace refvol-system")
	s.wantRunning(s.image)
	if now := n.running(); !slices.EqualFunc(before, now, func(a, b *pod) bool { return a.UID == b.UID }) || s.areLive(now...) == nil {
		t.Error("the pods are not those of before the installation")
	}
	n.awaitLive(s.driver, true)
	n.rolled("restart")
	pods := n.running()
	must.Do(t, s.areLive(pods...))
	n.setConfigMap("settings", object{"key": "second"})
	for _, p := range pods {
		p.awaitText(mountDir+"settings/key", "second", podTimeout)
		if _, selects := p.Spec.NodeSelector["refvol.dev/plugin"]; selects == (p.Labels["kind"] == "DaemonSet") {
			t.Errorf("%s has the node selector %v", p.Name, p.Spec.NodeSelector)
		}
	}

	// In a wrong order: while there are live pods.
	late := n.start(newPod("late", native("settings", "settings")))
	const uninstall = "helm uninstall refvol --namespace refvol-system"
	s.refusesUninstall(uninstall, "pod "+n.name+"/late on node "+late.Spec.NodeName, "switch live namespaces off before")
	s.searchPlugins()
	s.output(uninstall + " --no-hooks --wait")
	eventually(t, podTimeout, "no plugin is left", func(ctx context.Context) error { // helm waits for the DaemonSet, not for its pods
		plugins, err := s.plugins(ctx)
		if err == nil && len(plugins) > 0 {
			err = fmt.Errorf("there are %d", len(plugins))
		}
		return err
	})
	late.beginDelete()
	if err := kubectl(t.Context(), "wait", "--for=delete", "pod/late", "--namespace="+n.name, "--timeout=20s"); err == nil {
		t.Error("a pod has ended without the plugin")
	}

	// It is mended by another installation, and then removed in the order that docs/live-namespaces.md says.
	s.output("helm install" + release + " --namespace refvol-system")
	s.wantRunning(s.image)
	late.awaitGone()
	n.awaitLive(s.driver, false)
	n.rolled("restart")
	native := n.running()
	for _, p := range native {
		if s.areLive(p) == nil {
			t.Errorf("%s is live, which is switched off", p.Name)
		}
	}
	s.searchPlugins()
	s.output(uninstall)
	s.output("kubectl delete mutatingadmissionpolicybinding,mutatingadmissionpolicy lives-live-update")
	if now := n.running(); !slices.EqualFunc(native, now, func(a, b *pod) bool { return a.UID == b.UID }) {
		t.Error("the removal has changed the pods")
	}
}

// rolled does a command of kubectl rollout with all workloads, and waits until all of their pods are ready and new.
func (n *namespace) rolled(how string) {
	n.t.Helper()
	for _, workload := range []string{"deployment/app", "statefulset/app", "daemonset/app"} {
		n.kubectl("rollout", how, workload)
		n.kubectl("rollout", "status", workload, "--timeout="+rollTimeout.String())
	}
}

// running returns the pods of workloads that are not going, by name.
func (n *namespace) running() []*pod {
	n.t.Helper()
	list := must.Get(n.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: "kind"}))(n.t)
	var pods []*pod
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil {
			pods = append(pods, &pod{n, p})
		}
	}
	if len(pods) < 3 {
		n.t.Fatalf("%d pods run", len(pods))
	}
	return pods
}

// areLive returns an error if one of the pods is not made live by the release.
func (s *installer) areLive(pods ...*pod) error {
	for _, p := range pods {
		if err := isLive(p.Pod, s.driver, "settings"); err != nil {
			return err
		}
	}
	return nil
}
