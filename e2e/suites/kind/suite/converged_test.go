package suite

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// commandResult is how kubectl-refvol ended.
type commandResult struct {
	stdout, stderr string
	status         int
}

// kubectlRefvol runs the program that the runner has built.
func kubectlRefvol(t *testing.T, args ...string) (r commandResult) {
	t.Helper()
	program := os.Getenv("REFVOL_KUBECTL_REFVOL")
	if program == "" {
		t.Fatal("REFVOL_KUBECTL_REFVOL must name kubectl-refvol; make e2e builds it")
	}
	r.stdout, r.stderr, r.status = harness.Run(t, program, args...)
	return r
}

// testRotatePassword does the commands of the recipe, for 30 pods whose programs load the password now and then. When the
// second command says yes, no login fails any more if the old one is revoked: all have loaded the new one.
func testRotatePassword(t *testing.T) {
	recipes := parseRecipes(t, read(t, "../../../../docs/recipes.md"))
	i := slices.IndexFunc(recipes, func(r recipe) bool { return r.title == "Rotate a password" })
	if i < 0 || len(recipes[i].steps) != 2 {
		t.Fatal("docs/recipes.md has no recipe of two commands that rotates a password")
	}
	n := newNamespace(t)
	n.setSecret("db", object{"password": "first"})
	pods := make([]*pod, 30)
	workers := n.workers(t)
	for i := range pods {
		spec := newPod(fmt.Sprintf("app-%02d", i), refvol("login", attributes{"secret": "db"}))
		spec.Spec.NodeName = workers[i%len(workers)]
		spec.Spec.Containers[0].Args = []string{"reload", "4s", mountDir + "login/password"} // the new file is there long before
		pods[i] = n.create(spec)
	}
	awaitReady(pods...)
	for _, p := range pods { // a pod is ready before its program has read anything
		p.awaitHistory("a text", func(h history) bool { return len(h.told) > 0 })
	}
	s := newShell(n, "-n shop", "-n "+n.name, "--timeout 2m", "--timeout 10m") // a busy machine may need more
	changed := now(t)
	for _, step := range recipes[i].steps {
		s.output(step.command)
	}
	revoked, last := now(t), time.Duration(0)
	for _, p := range pods {
		h := p.awaitHistory("two texts", func(h history) bool { return len(h.told) > 1 })
		got := h.told[len(h.told)-1]
		if len(h.told) != 2 || h.told[0].Text != "first" || got.Text != "second" || got.At > revoked {
			t.Errorf("%s logs in with the old password when it is revoked, at %s: %+v", p.Name, revoked, h.told)
		}
		last = max(last, got.At)
	}
	t.Logf("the last of %d pods had the new password %s after the change, and the answer came after %s", len(pods),
		(last - changed).Round(time.Millisecond), (revoked - changed).Round(time.Millisecond))
}
