package doclines

import (
	"reflect"
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	for line, want := range map[string][][]string{
		`A=1 make e2e K8S=1.35 # why`:                      {{"make", "e2e", "K8S=1.35"}},
		`kubectl patch a -p '{"b": "c|d"}' && ./next`:      {{"kubectl", "patch", "a", "-p", `{"b": "c|d"}`}, {"./next"}},
		"kubectl label nodes $(kubectl get pods -o x) a=b": {{"kubectl", "get", "pods", "-o", "x"}, {"kubectl", "label", "nodes", "$(kubectl get pods -o x)", "a=b"}},
	} {
		if got := Split(line); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

func TestCommands(t *testing.T) {
	got := Commands("# why\na \\\n  -b\n\nc |\n  d\ne\n")
	if want := []string{"a -b", "c | d", "e"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestBlocks: a block of a list is found without its indentation, and one that is not closed.
func TestBlocks(t *testing.T) {
	got := Blocks("1. a\n\n   ```sh\n   b |\n     c\n   ```\n```\nd\n```\n```sh\n  e", "sh")
	if want := []string{"b |\n  c\n", "  e\n"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFind: commands of all kinds of places are found: in a block, in a script, in a help text, in a list, in a sentence.
func TestFind(t *testing.T) {
	for _, want := range []Line{
		{"getting-started.md", []string{"kubectl", "logs", "--tail=1", "app"}, false},
		{"recipes.md", []string{"kubectl", "apply", "-f", "gate.yaml"}, false},
		{"commands.md", []string{"kubectl", "-n", "refvol-system", "exec", "POD", "--", "/refvol-plugin", "status"}, false},
		{"uninstall.md", []string{"kubectl", "refvol", "uninstall-check"}, false},
		{"README.md", []string{"make", "try"}, true},
	} {
		if !slices.ContainsFunc(Find(t, "../..", want.Args[0], 1), func(l Line) bool { return reflect.DeepEqual(l, want) }) {
			t.Errorf("%s was not found", &want)
		}
	}
}
