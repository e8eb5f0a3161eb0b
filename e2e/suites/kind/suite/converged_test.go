package suite

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/refvol/refvol/internal/leak"
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
