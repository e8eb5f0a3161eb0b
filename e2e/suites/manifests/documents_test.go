package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
)

// documented returns the arguments of the kubectl commands of a document that begin with verb.
func documented(t *testing.T, document, verb string) [][]string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(shared.deploy, "..", "docs", document)))(t)
	var commands [][]string
	for _, block := range doclines.Blocks(string(text), "sh") {
		for _, command := range doclines.Commands(block) {
			words := strings.Fields(command)
			if strings.HasPrefix(strings.Join(words, " ")+" ", "kubectl "+verb+" ") {
				commands = append(commands, words[1:])
			}
		}
	}
	if len(commands) == 0 {
		t.Fatalf("%s has no command %q", document, verb)
	}
	return commands
}

// TestSwitchKeepsRights switches from the plugin's identity to the node's by the commands of
// docs/identity.md: the plugins that are still the old ones may publish until the last command.
func TestSwitchKeepsRights(t *testing.T) {
	asked := func(verb, kind string) error {
		return allowed(t.Context(), pluginUser, pluginGroups(), authorizationv1.ResourceAttributes{Verb: verb, Resource: kind, Namespace: "default"})
	}
	old := func() error {
		for _, kind := range []string{"configmaps", "secrets"} {
			for _, verb := range []string{"list", "watch"} {
				if err := asked(verb, kind); err != nil {
					return err
				}
			}
		}
		return asked("get", "pods")
	}
	install(t)
	harness.Eventually(t, soon, old)
	for _, command := range documented(t, "identity.md", "create") {
		mustKubectl(t, command...)
	}
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, "node-identity"))
	settle(t)
	must.Do(t, old())
	for _, command := range documented(t, "identity.md", "delete") {
		mustKubectl(t, command...)
	}
	settle(t)
	for _, right := range [][2]string{{"list", "secrets"}, {"get", "configmaps"}, {"get", "pods"}} {
		if err := asked(right[0], right[1]); err == nil {
			t.Errorf("in the end the account may still %s %s", right[0], right[1])
		}
	}
}

// TestDocumentedKubectl: kubectl knows each command that the documents show, and its flags. It prints the help of a command once it has parsed
// the flags.
func TestDocumentedKubectl(t *testing.T) {
	seen := map[string]bool{}
	for _, line := range doclines.Find(t, filepath.Join(shared.deploy, ".."), "kubectl", 100) {
		// Commands that differ in names and in the values of flags only are equal here.
		var words, flags []string
		for _, word := range line.Args[1:] {
			if flag, _, _ := strings.Cut(word, "="); strings.HasPrefix(flag, "-") {
				flags = append(flags, flag)
			} else {
				words = append(words, word)
			}
		}
		alike := fmt.Sprint(words[:min(len(words), 3)], flags, line.IsSpan)
		if line.Args[1] == "refvol" || seen[alike] {
			continue
		}
		seen[alike] = true
		args := append([]string{"--help=true"}, line.Args[1:]...)
		if line.IsSpan { // its last flag may lack a value
			args = append(args, "x")
		}
		out, err := shared.kubectl(t.Context(), args...)
		at := slices.IndexFunc(line.Args[1:], func(word string) bool { return strings.Contains(out, "\n  kubectl "+word) })
		switch rest := line.Args[at+2:]; {
		case err != nil:
		case at < 0:
			err = errors.New("kubectl has no such command")
		case strings.Contains(out, "\nAvailable Commands:\n") && len(rest) > 0 && !strings.HasPrefix(rest[0], "-"):
			err = errors.New("kubectl has no such subcommand")
		}
		if err != nil {
			t.Errorf("%s: %v", &line, err)
		}
	}
}
