package suite

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/doclines"
)

// withShell replaces the image of the recipes by REFVOL_SHELL_IMAGE, if that is set: no registry can be reached then.
func withShell(text string) string {
	if shell := os.Getenv("REFVOL_SHELL_IMAGE"); shell != "" {
		return strings.ReplaceAll(text, "docker.io/library/busybox:1.37", shell)
	}
	return text
}

// step is a command of a recipe, and what it prints.
type step struct{ command, prints string }

// recipe is a section of docs/recipes.md or docs/getting-started.md.
type recipe struct {
	title string
	yaml  string
	steps []step
}

// testRecipes applies the objects of each recipe, does what its commands do, and wants the output
// that the document shows. Only the images and the namespace are replaced.
func testRecipes(t *testing.T) {
	var recipes []recipe
	for _, document := range []string{"getting-started.md", "recipes.md"} {
		recipes = append(recipes, parseRecipes(t, read(t, "../../../../docs/"+document))...)
	}
	recipes = slices.DeleteFunc(recipes, func(r recipe) bool { return r.yaml == "" })
	if len(recipes) < 5 {
		t.Fatalf("the documents have %d recipes", len(recipes))
	}
	for _, r := range recipes {
		t.Run(r.title, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			s := newShell(n)
			s.apply(withShell(r.yaml))
			for _, step := range r.steps {
				if step.prints == "" {
					s.output(step.command)
				} else {
					s.prints(step.command, step.prints)
				}
			}
			if strings.Count(r.yaml, "driver: csi.refvol.dev") == 1 && !strings.Contains(r.yaml, "InPlace") { // one volume that switches
				n.isWhole(r)
			}
		})
	}
}

// parseRecipes takes the document's sections that have objects or commands.
func parseRecipes(t *testing.T, text string) []recipe {
	t.Helper()
	var recipes []recipe
	for _, section := range regexp.MustCompile(`\n##+ `).Split(text, -1)[1:] {
		title, body, _ := strings.Cut(section, "\n")
		r := recipe{title: title}
		for _, part := range doclines.Parts(body) {
			switch part.Language {
			case "yaml":
				r.yaml += "---\n" + part.Text
			case "sh":
				for _, command := range doclines.Commands(part.Text) {
					r.steps = append(r.steps, step{command: command})
				}
			case "text":
				if len(r.steps) == 0 {
					t.Fatalf("%s: no command prints %q", title, part.Text)
				}
				r.steps[len(r.steps)-1].prints = part.Text
			}
		}
		if r.yaml != "" && len(r.steps) < 3 {
			t.Fatalf("%s: %d steps", title, len(r.steps))
		}
		if r.yaml != "" || len(r.steps) > 0 {
			recipes = append(recipes, r)
		}
	}
	return recipes
}

// isWhole wants no line in the log of a recipe's pod that the document doesn't show: a reader sees
// one version of all files, or another.
func (n *namespace) isWhole(r recipe) {
	n.t.Helper()
	shown := ""
	for _, s := range r.steps {
		shown += s.prints
	}
	pods, err := n.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range pods.Items {
		log, err := n.log(n.t.Context(), &pods.Items[i], &corev1.PodLogOptions{})
		if err != nil {
			n.t.Fatal(err)
		}
		for line := range strings.Lines(log) {
			if !slices.Contains(slices.Collect(strings.Lines(shown)), line) {
				n.t.Errorf("the log of %s has %q, which the document doesn't show", pods.Items[i].Name, line)
			}
		}
	}
}
