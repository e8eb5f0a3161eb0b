package suite

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	s.output("helm install refvol deploy/charts/refvol --set image.registry=registry.example.com,image.tag=v0.1.0," +
		"image.pullPolicy=IfNotPresent,live.enabled=true,liveNodeSelector.enabled=true --namespace refvol-system")
	s.wantRunning(s.image)
	if now := n.running(); !slices.EqualFunc(before, now, func(a, b *pod) bool { return a.UID == b.UID }) || s.areLive(now...) == nil {
		t.Error("the pods are not those of before the installation")
	}
	n.awaitLive(s.driver, true)
	n.rolled("restart")
	pods := n.running()
	if err := s.areLive(pods...); err != nil {
		t.Fatal(err)
	}
	n.setConfigMap("settings", object{"key": "second"})
	for _, p := range pods {
		p.awaitText(mountDir+"settings/key", "second", podTimeout)
		if _, selects := p.Spec.NodeSelector["refvol.dev/plugin"]; selects == (p.Labels["kind"] == "DaemonSet") {
			t.Errorf("%s has the node selector %v", p.Name, p.Spec.NodeSelector)
		}
	}
	late := n.create(newPod("late", native("late", "late")))
	late.awaitWarning("RefNotFound")
	n.setConfigMap("late", object{"key": "here"})
	late.awaitReady()
	late.awaitText(mountDir+"late/key", "here", podTimeout)

	// In a wrong order: while there are live pods.
	s.refusesUninstall("helm uninstall refvol --namespace refvol-system", "pod "+n.name+"/late on node "+late.Spec.NodeName, "switch live namespaces off before")
	s.output("helm uninstall refvol --namespace refvol-system --no-hooks --wait")
	eventually(t, podTimeout, "no plugin is left", func(ctx context.Context) error { // helm waits for the DaemonSet, not for its pods
		plugins, err := s.plugins(ctx)
		if err == nil && len(plugins) > 0 {
			err = fmt.Errorf("there are %d", len(plugins))
		}
		return err
	})
	late.beginDelete()
	n.awaitLive(s.driver, false)
	n.rolled("restart", "deployment/app")
	for _, p := range n.running() {
		if isLive := s.areLive(p) == nil; isLive == (p.Labels["kind"] == "Deployment") {
			t.Errorf("without the plugin %s is live: %t", p.Name, isLive)
		}
		// The files stay, but for a live pod they are those of the last moment.
		p.awaitText(mountDir+"settings/key", "second", podTimeout)
	}
	late.phase(t) // without the plugin it can't end

	// It is mended by another installation, and then removed in the right order.
	s.output("helm install refvol deploy/charts/refvol --set image.registry=registry.example.com,image.tag=v0.1.0,image.pullPolicy=IfNotPresent --namespace refvol-system")
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
	s.output("helm uninstall refvol --namespace refvol-system")
	s.output("kubectl delete mutatingadmissionpolicybinding,mutatingadmissionpolicy lives-live-update")
	if now := n.running(); !slices.EqualFunc(native, now, func(a, b *pod) bool { return a.UID == b.UID }) {
		t.Error("the removal has changed the pods")
	}
}

// rolled does a command of kubectl rollout with the workloads, by default all of the test's, and waits until all of their pods are ready and new.
func (n *namespace) rolled(how string, workloads ...string) {
	n.t.Helper()
	if len(workloads) == 0 {
		workloads = []string{"deployment/app", "statefulset/app", "daemonset/app"}
	}
	for _, workload := range workloads {
		n.kubectl("rollout", how, workload)
		n.kubectl("rollout", "status", workload, "--timeout="+rollTimeout.String())
	}
}

// running returns the pods of workloads that are not going, by name.
func (n *namespace) running() []*pod {
	n.t.Helper()
	list, err := n.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: "kind"})
	if err != nil {
		n.t.Fatal(err)
	}
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
