package suite

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/doclines"
)

// stranger follows the document.
type stranger struct {
	*installer
	// document is a text, and commands are those of it that have not been run.
	document string
	commands []string
}

func newStranger(t *testing.T) *stranger {
	t.Helper()
	s := &stranger{installer: newInstaller(t, "stranger"), document: read(t, "../../../../docs/getting-started.md")}
	for _, block := range doclines.Blocks(s.document, "sh") {
		s.commands = append(s.commands, doclines.Commands(block)...)
	}
	return s
}

// next takes the next command of the document, which begins with a text.
func (s *stranger) next(begins string) string {
	s.t.Helper()
	if len(s.commands) == 0 || !strings.HasPrefix(s.commands[0], begins) {
		s.t.Fatalf("the next commands of the document are %q, want %s", s.commands, begins)
	}
	command := s.commands[0]
	s.commands = s.commands[1:]
	return command
}

// does runs the next command, with more arguments, and returns what it printed.
func (s *stranger) does(begins string, args ...string) string {
	s.t.Helper()
	return s.output(strings.Join(append([]string{s.next(begins)}, args...), " "))
}

// wantText wants the file of the document's pod to have a text.
func (s *stranger) wantText(text string) {
	s.t.Helper()
	if out := s.output("kubectl exec app -- sh -c 'cat /etc/app/greeting'"); out != text {
		s.t.Errorf("the file has %q, want %q", out, text)
	}
}

// repairs repairs a release whose uninstallation was refused, by docs/uninstall.md.
func (s *stranger) repairs() {
	s.t.Helper()
	out, err := s.run("helm upgrade refvol deploy/charts/refvol --namespace refvol-system")
	if err == nil || !strings.Contains(out, "has no deployed releases") {
		s.t.Errorf("an upgrade after the refusal: %v, %s", err, out)
	}
	log := s.output("kubectl --namespace refvol-system logs job/refvol-uninstall-check")
	command := regexp.MustCompile(`helm rollback refvol \d+ --namespace \S+`).FindString(log)
	if command == "" {
		s.t.Fatal("the log of the check has no command that repairs the release")
	}
	s.output(command)
	s.find(s.output("helm status refvol --namespace refvol-system"), "STATUS:", "deployed")
}

// TestStrangersPath runs all commands of docs/getting-started.md in order, from the install to the uninstall,
// and looks at each step at what the documents say of it.
func TestStrangersPath(t *testing.T) {
	t.Parallel()
	s := newStranger(t)
	s.pods.needsPolicies() // the chart's default identity needs the same version of Kubernetes
	for _, needsRegistry := range []string{"make image", "docker load", "docker push", "make image", "docker load", "docker push"} {
		s.next(needsRegistry)
	}
	s.does("helm install", "--set helmTest.image="+os.Getenv("REFVOL_SHELL_IMAGE")) // the registry may be out of reach
	s.does("kubectl --namespace refvol-system rollout status")
	s.wantRunning(s.image)
	s.find(s.output("helm test refvol --namespace refvol-system"), "Phase:", "Succeeded") // docs/install.md

	blocks := doclines.Blocks(s.document, "yaml")
	if len(blocks) == 0 {
		t.Fatal("the document has no objects")
	}
	s.apply(withShell(strings.ReplaceAll(blocks[0], driver, s.driver)))
	s.prints(s.next("kubectl logs"), "hello\n")
	p := &pod{s.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: s.pods.name}}}
	p.awaitReady()
	s.does("kubectl patch")
	s.prints(s.next("kubectl logs"), "good morning\n")
	s.does("kubectl patch")
	s.find(s.does("kubectl refvol converged"), "Converged: yes", "this version: 1 of 1")
	s.wantText("good evening")

	// The fault is found by both status commands.
	s.does("kubectl delete configmap")
	s.fails(s.next("kubectl refvol status"), s.pods.name+"/app", "RefDeleted", "no ")
	ofNode := regexp.MustCompile(`kubectl .* exec POD -- .*`).FindString(read(t, "../../../../docs/runbook.md"))
	s.fails(strings.Replace(ofNode, "POD", s.plugin(p.Spec.NodeName).Name, 1), s.pods.name+"/app", "RefDeleted", "no ")
	s.wantText("good evening")
	s.does("kubectl create configmap")
	s.does("kubectl refvol converged")
	s.wantText("hello")

	s.makeNewer()
	s.does("helm upgrade")
	s.does("kubectl --namespace refvol-system rollout status")
	s.wantRunning(s.newer())
	s.pods.setConfigMap("settings", object{"greeting": "good night"})
	s.output("kubectl refvol converged configmap/settings --timeout 60s")
	s.wantText("good night")
	for line := range strings.Lines(s.output("kubectl logs app")) {
		if !slices.Contains([]string{"hello", "good morning", "good evening", "good night"}, strings.TrimSpace(line)) {
			t.Errorf("the pod has read %q", line)
		}
	}

	inspectors := map[string]*pod{}
	for _, node := range s.nodes(t) {
		inspectors[node.Name] = s.pods.startOnNode("inspector-"+node.Name, node.Name)
	}
	shareNode(t) // a kubelet that is down would not hear that a driver goes
	left := leftovers{inspector: inspectors[p.Spec.NodeName], of: p}
	left.there(t)
	s.refusesUninstall(s.next("helm uninstall"), fmt.Sprintf("pod %s/app on node %s", s.pods.name, p.Spec.NodeName))
	s.repairs()
	s.wantRunning(s.newer())
	s.does("kubectl delete pod")
	s.searchPlugins()
	s.does("helm uninstall")
	if len(s.commands) > 0 {
		t.Errorf("the document has more commands: %q", s.commands)
	}
	left.awaitNone(t)
	for node, inspector := range inspectors {
		s.wantNothingOn(inspector, node)
	}
}
