package suite

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// helmTestImage is the argument that has the pod of helm test run where no registry is.
func helmTestImage() string {
	shell := os.Getenv("REFVOL_SHELL_IMAGE")
	if shell == "" {
		return ""
	}
	return "--set helmTest.image=" + shell
}

// TestStrangersPath runs all commands of docs/getting-started.md in order, from the install to the uninstall,
// and looks at each step at what the documents say of it.
func TestStrangersPath(t *testing.T) {
	t.Parallel()
	useAllNodes(t)
	s := newStranger(t)

	s.skip("make image", "docker load", "docker push", "make image", "docker load", "docker push")
	if s.refusesDefaults("helm install refvol deploy/charts/refvol --namespace refvol-system") {
		return
	}
	s.does("helm install", s.said("--set metrics.enabled=true"), helmTestImage())
	s.does("kubectl --namespace refvol-system rollout status")
	s.wantRunning(s.image, "--identity=node", true)
	s.find(s.output("helm test refvol --namespace refvol-system"), "Phase:", "Succeeded") // docs/install.md

	s.apply(s.yaml())
	s.shows("kubectl logs", "hello")
	p := s.running("app")
	s.does("kubectl patch")
	s.shows("kubectl logs", "good morning")
	s.does("kubectl patch")
	s.find(s.does("kubectl refvol converged"), "Converged: yes", "this version: 1 of 1")
	wantText := func(text string) {
		t.Helper()
		if out := s.output("kubectl exec app -- sh -c 'cat /etc/app/greeting'"); out != text {
			t.Errorf("the file has %q, want %q", out, text)
		}
	}
	wantText("good evening")

	// The fault is found by both status commands.
	s.does("kubectl delete configmap")
	s.fails(s.next("kubectl refvol status"), s.pods.name+"/app", "RefDeleted", "no ")
	s.fails(strings.Replace(s.runbookStatus(), "POD", s.plugin(p.Spec.NodeName).Name, 1), s.pods.name+"/app", "RefDeleted", "no ")
	wantText("good evening")
	s.does("kubectl create configmap")
	s.does("kubectl refvol converged")
	wantText("hello")

	s.retag(s.newer())
	s.does("helm upgrade")
	s.does("kubectl --namespace refvol-system rollout status")
	s.wantRunning(s.newer(), "--identity=node", true)
	s.pods.setConfigMap("settings", object{"greeting": "good night"})
	s.output("kubectl refvol converged configmap/settings --timeout 60s")
	wantText("good night")
	for line := range strings.Lines(s.output("kubectl logs app")) {
		if !slices.Contains([]string{"hello", "good morning", "good evening", "good night"}, strings.TrimSpace(line)) {
			t.Errorf("the pod has read %q", line)
		}
	}

	inspectors := map[string]*pod{}
	paths := pluginPaths(t, s.plugin(p.Spec.NodeName))
	nodes, err := s.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		inspectors[node.Name] = s.pods.startOnNode("inspector-"+node.Name, node.Name)
	}
	left := leftovers{inspector: inspectors[p.Spec.NodeName], paths: paths, of: p}
	left.there(t)
	s.refusesUninstall(s.next("helm uninstall"), fmt.Sprintf("pod %s/app on node %s", s.pods.name, p.Spec.NodeName))
	s.repairs()
	s.wantRunning(s.newer(), "--identity=node", true)
	s.does("kubectl delete pod")
	s.does("helm uninstall")
	if len(s.commands) > 0 {
		t.Errorf("the document has more commands: %q", s.commands)
	}
	left.awaitNone(t)
	for node, inspector := range inspectors {
		s.wantNothingOn(inspector, node, paths)
		if found, err := inspector.mounts(t.Context(), s.driver); err != nil || len(found) > 0 {
			t.Errorf("mounts of %s: %v, %v", node, found, err)
		}
		// docs/uninstall.md: an empty lock file stays, and nothing else.
		for _, e := range inspector.tree(path.Join(nodeRoot, paths.socket)) {
			if e.Path != "." && (!strings.HasSuffix(e.Path, ".lock") || e.Type != "file" || len(e.Content) > 0) {
				t.Errorf("%s has %+v in %s", node, e, paths.socket)
			}
		}
	}
	if out := s.output("kubectl --namespace refvol-system get podmonitors,prometheusrules --output name"); out != "" {
		t.Errorf("left in the cluster: %s", out)
	}
}
