package suite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/fleet"
)

// commandResult is how kubectl-refvol ended.
type commandResult struct {
	stdout, stderr string
	status         int
}

// kubectlRefvol runs the program that the runner has built.
func kubectlRefvol(t *testing.T, args ...string) commandResult {
	t.Helper()
	program := os.Getenv("REFVOL_KUBECTL_REFVOL")
	if program == "" {
		t.Fatal("REFVOL_KUBECTL_REFVOL must name kubectl-refvol; make e2e builds it")
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := errors.Join(leak.Check("standard output", stdout.String()), leak.Check("standard error", stderr.String())); err != nil {
		t.Error(err)
	}
	return commandResult{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// converged asks for the Secret login, and returns the answer with a line for each laggard.
func (n *namespace) converged(args ...string) (fleet.Result, []string) {
	n.t.Helper()
	r := kubectlRefvol(n.t, append([]string{"converged", "secret/login", "-n", n.name, "-o", "json"}, args...)...)
	var v fleet.Result
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || (r.status == 0) != v.Converged {
		n.t.Fatalf("status %d, %v\n%s\n%s", r.status, err, r.stdout, r.stderr)
	}
	lines := []string{}
	for _, l := range v.Laggards {
		pod := "-"
		if l.Pod != nil {
			pod = l.Pod.Name
		}
		lines = append(lines, fmt.Sprint(l.Node, " ", pod, " ", l.Reason))
	}
	n.t.Logf("converged %q: %v, %d of %d volumes on %d nodes, laggards %q", args, v.Converged, v.Showing, v.Volumes, v.Nodes, lines)
	return v, lines
}

// TestConverged runs with no other test: the commands look at all nodes.
func TestConverged(t *testing.T) {
	n := newNamespace(t)
	n.createSecret("login", object{"user": canary("one"), "extra": canary("one")})
	away, busy := takeNode(t), n.worker(t)
	n.start(onNode(newPod("away", refvol("login", attributes{"secret": "login"})), away))
	n.start(onNode(newPod("busy", refvol("login", attributes{"secret": "login"})), busy))
	v, laggards := n.converged()
	if all, _ := n.nodes(t); !v.Converged || v.Volumes != 2 || v.Nodes != len(all) {
		t.Errorf("got %+v, laggards %q; want yes of 2 volumes on nodes %q", v, laggards, all)
	}
	if r := kubectlRefvol(t, "status"); r.status != 0 || !strings.Contains(r.stdout, n.name+"/away") || !strings.Contains(r.stdout, n.name+"/busy") {
		t.Errorf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}

	// A node without its plugin: what its pod shows is not known.
	letBack := n.keepPluginAway(t, away)
	n.updateSecret("login", object{"user": canary("two"), "extra": canary("two")})
	if _, laggards := n.converged("--timeout=10s"); !slices.Equal(laggards, []string{away + " - NoPlugin"}) {
		t.Errorf("laggards %q, want %s", laggards, away)
	}
	if r := kubectlRefvol(t, "status"); r.status != 1 || !strings.Contains(r.stdout, away) || !strings.Contains(r.stdout, "NoPlugin") {
		t.Errorf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}

	// The Secret changes during the wait, and the plugin comes back.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		v, laggards = n.converged("--timeout=" + (2 * podTimeout).String())
	}()
	last := n.updateSecret("login", object{"user": canary("three"), "extra": canary("three")})
	letBack()
	<-ended
	if !v.Converged || v.Volumes != 2 || last.ResourceVersion != v.Current.ResourceVersion {
		t.Errorf("got %+v, laggards %q; want yes of the last version", v, laggards)
	}

	// A volume that can't follow, as its key is gone.
	n.start(onNode(newPod("stuck", refvol("login", attributes{"secret": "login", "items": "[{key: extra, path: extra}]"})), busy))
	n.updateSecret("login", object{"user": canary("four")})
	v, laggards = n.converged("--timeout=10s")
	if !slices.Equal(laggards, []string{busy + " stuck Outdated"}) || v.Showing != 2 || v.Volumes != 3 {
		t.Errorf("got %+v, laggards %q", v, laggards)
	}
	if len(v.Laggards) == 1 && !strings.Contains(v.Laggards[0].Message, "extra") {
		t.Errorf("the reason does not name the key: %s", v.Laggards[0].Message)
	}
	if r := kubectlRefvol(t, "status"); r.status != 1 || !strings.Contains(r.stdout, "RefKeyNotFound") {
		t.Errorf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}
}

// TestRotatePassword does the commands of the recipe: when the second one says yes, the pod has the
// password. It runs with no other test, as the command looks at all nodes.
func TestRotatePassword(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes := parseRecipes(t, string(text))
	i := slices.IndexFunc(recipes, func(r recipe) bool { return r.title == "Rotate a password" })
	if i < 0 || len(recipes[i].steps) != 2 {
		t.Fatal("docs/recipes.md has no recipe of two commands that rotates a password")
	}
	k := newKitchen(t)
	k.in(t, "shop")
	n := k.namespaces["shop"]
	n.createSecret("db", object{"password": "first"})
	p := n.start(newPod("reader", refvol("login", attributes{"secret": "db"})))
	k.run(t, recipes[i].steps[0])
	args := slices.Clone(recipes[i].steps[1].args[1:]) // without "refvol"
	args[slices.Index(args, "shop")] = n.name
	if r := kubectlRefvol(t, args...); r.status != 0 {
		t.Errorf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}
	if err := p.hasText(t.Context(), "probe", mountDir+"login/password", "second"); err != nil {
		t.Error(err)
	}
}
