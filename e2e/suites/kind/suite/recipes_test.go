package suite

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
)

// withShell replaces the image of the recipes by REFVOL_SHELL_IMAGE, as the registry may be out of reach.
func withShell(text string) string {
	return strings.ReplaceAll(text, "docker.io/library/busybox:1.37", os.Getenv("REFVOL_SHELL_IMAGE"))
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
	if len(recipes) < 6 || !slices.ContainsFunc(recipes, func(r recipe) bool { return r.title == rotation }) {
		t.Fatalf("the documents have %d recipes, or none is %q", len(recipes), rotation)
	}
	for _, r := range recipes {
		t.Run(r.title, func(t *testing.T) {
			t.Parallel()
			if r.title == rotation {
				rotate(t, r)
				return
			}
			s := newShell(newNamespace(t))
			s.apply(withShell(r.yaml))
			for _, step := range r.steps {
				if step.prints == "" {
					s.output(step.command)
				} else {
					s.prints(step.command, step.prints)
				}
			}
		})
	}
}

// rotate does the commands of the recipe for a pod that follows the password. When the last one succeeds, the pod has read the new one.
func rotate(t *testing.T, r recipe) {
	n := newNamespace(t)
	n.setSecret("db", object{"password": "first"})
	spec := newPod("app", refvol("login", attributes{"secret": "db"}))
	const file = mountDir + "login/password"
	spec.Spec.Containers[0].Args = []string{"follow", file}
	p := n.start(spec)
	p.awaitHistory("the old password", func(h history) bool { return h.has("first", file) })
	s := newShell(n, "-n shop", "-n "+n.name, "--timeout 2m", "--timeout 10m") // a busy machine may need more
	for _, step := range r.steps {
		s.output(step.command)
	}
	revoked := must.Get(clock.Now())(t)
	h := p.awaitHistory("the new password", func(h history) bool { return h.has("second", file) })
	if at := h.last(file).At; at > revoked {
		t.Errorf("the new password was read at %s, and the old one revoked at %s", at, revoked)
	}
}

// rotation is the title of a recipe without objects.
const rotation = "Rotate a password"

// parseRecipes takes the document's sections that have objects, and that of the rotation.
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
		if r.yaml == "" && title != rotation {
			continue
		}
		if len(r.steps) < 2 || r.yaml != "" && len(r.steps) < 3 {
			t.Fatalf("%s: %d steps", title, len(r.steps))
		}
		recipes = append(recipes, r)
	}
	return recipes
}
