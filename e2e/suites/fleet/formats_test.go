package fleet

import (
	"fmt"
	"strings"
	"testing"
)

// TestStatusAsKubectl: what status lists, and how, is chosen by kubectl's flags. It exits with 1, as no kubelet has registered the
// plugins.
func TestStatusAsKubectl(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("web")
	w.node("node-2").publish("db")
	names := fmt.Sprintf("pod/db --namespace=%[1]s\npod/web --namespace=%[1]s\n", w.namespace)
	columns := "custom-columns=NODE:.node,POD:.pod.name,SHOWN:.objects[*].kind,NONE:.missing"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", "name"}, names},
		{[]string{"-o", "name", "--node", "node-2"}, "pod/db --namespace=" + w.namespace + "\n"},
		{[]string{"-o", "name", "-n", w.namespace}, "pod/db\npod/web\n"},
		{[]string{"-o", "name", "-n", "default"}, ""},
		{[]string{"-o", "name", "-n", "default", "-A"}, names},
		{[]string{"-o", "name", "--abnormal"}, ""},
		{[]string{"-o", columns, "--node=node-1"}, "NODE     POD   SHOWN    NONE\nnode-1   web   Secret   <none>\n"},
		{[]string{"-o", columns, "--node=node-1", "--no-headers"}, "node-1   web   Secret   <none>\n"},
		{[]string{"-o", "jsonpath={.kind} {.nodes[*].report.volumes[*].pod.name}"}, "ClusterStatus web db"},
	} {
		r := w.run(append([]string{"status"}, test.args...)...)
		if r.stdout != test.want || r.status != 1 || !strings.HasPrefix(r.stderr, "Error: status: plugins that are not ready: ") {
			t.Errorf("%q: status %d, %s\n%s, want\n%s", test.args, r.status, r.stderr, r.stdout, test.want)
		}
	}
	if r := w.run("status", "--abnormal"); strings.Contains(r.stdout, "NORMAL") || !strings.HasSuffix(r.stdout, "\n2 volumes on 2 nodes, 0 abnormal\n") {
		t.Errorf("--abnormal\n%s", r.stdout)
	}
	if r := w.run("status", "--node=nowhere"); r.status != 2 || !strings.Contains(r.stderr, `--node: "nowhere" has no plugin`) && !strings.Contains(r.stderr, "no pod of namespace") {
		t.Errorf("a node that there is not: status %d, %s", r.status, r.stderr)
	}
}

// TestConvergedAsKubectl: objects are named as for kubectl, and what the API server doesn't know is said in kubectl's words.
func TestConvergedAsKubectl(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("web")
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"Secret/db"}, 0, "Converged: yes. secret/db in namespace " + w.namespace},
		{[]string{"secrets", "db"}, 0, "Converged: yes. "},
		{[]string{"secret/db", "-o", "jsonpath={.kind} {.showing}"}, 0, "Convergence 1"},
		{[]string{"secret/db", "secret/none", "-o", "jsonpath={.kind}{range .items[*]} {.object.name}={.converged}{end}"}, 1, "ConvergenceList db=true none=false"},
		{[]string{"foo/db"}, 2, `Error: "foo": volumes show secrets and configmaps only`},
		{[]string{"pod/db"}, 2, `Error: "pod": volumes show secrets and configmaps only`},
		{[]string{"secrets", "-l", "app=web", "--timeout=1m"}, 2, "cannot list resource"},
	} {
		r := w.run(append([]string{"converged", "-n", w.namespace}, test.args...)...)
		if out := r.stdout + r.stderr; r.status != test.status || !strings.Contains(out, test.want) {
			t.Errorf("%q: status %d, want %d, %q\n%s", test.args, r.status, test.status, test.want, out)
		}
	}
	if r := w.run("converged", "secret/db", "-n", w.namespace, "--as=somebody"); r.status != 2 || !strings.Contains(r.stderr, "cannot impersonate") {
		t.Errorf("as somebody else: status %d, %s", r.status, r.stderr)
	}
	w.caller = shared.Kubeconfig()
	label := fmt.Sprintf("refvol.dev/test=%s", w.namespace)
	if r := w.run("converged", "secrets,configmaps", "-n", w.namespace, "-l", label, "--timeout=10s"); r.status != 3 || !strings.Contains(r.stderr, "no resources found in "+w.namespace+" namespace") {
		t.Errorf("no object has the label: status %d, %s", r.status, r.stderr)
	}
	if r := w.run("converged", "secrets", "-n", w.namespace, "-l", "!none", "--timeout=20s", "-o", "jsonpath={.object.name}"); r.status != 0 || r.stdout != "db" {
		t.Errorf("a label that all have: status %d, %s%s", r.status, r.stdout, r.stderr)
	}
}
