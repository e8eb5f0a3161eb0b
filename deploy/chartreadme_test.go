package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/refvol/refvol/internal/must"
)

const tableBegins, tableEnds = "<!-- values -->\n", "<!-- end of values -->\n"

// TestChartReadme: the README's table is what values.yaml says of each value. With -update it is written anew.
func TestChartReadme(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(chart, "values.yaml")))(t)
	all := must.Get(yaml.Parse(string(text)))(t)
	table := "| value | default | meaning |\n|---|---|---|\n" + strings.Join(valueRows(t, "", "", all.YNode()), "")

	path := filepath.Join(chart, "README.md")
	readme := must.Get(os.ReadFile(path))(t)
	before, rest, begins := strings.Cut(string(readme), tableBegins)
	got, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", path)
	}
	if *update {
		must.Do(t, os.WriteFile(path, []byte(before+tableBegins+table+tableEnds+after), 0o600))
		got = table
	}
	if got != table {
		t.Errorf("%s lacks what values.yaml says: run make chart\n got %s\nwant %s", path, got, table)
	}
}

// valueRows returns a row for each value below a mapping. The comment of the mapping itself begins the first row. Lists, and
// mappings that are one value to the user, are written as they are.
func valueRows(t *testing.T, above, says string, mapping *yaml.Node) []string {
	t.Helper()
	var rows []string
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := above + key.Value
		says = strings.TrimSpace(says + " " + meaning(key.HeadComment))
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && !slices.Contains([]string{"resources", "affinity", "nodeSelector", "dashboard.labels"}, name) {
			rows = append(rows, valueRows(t, name+".", says, value)...)
		} else {
			if says == "" {
				t.Errorf("values.yaml has no comment on %s", name)
			}
			rows = append(rows, fmt.Sprintf("| `%s` | `%s` | %s |\n", name, inline(t, value), says))
		}
		says = ""
	}
	return rows
}

// meaning returns a comment as one line. Documents that it names become links.
func meaning(comment string) string {
	line := plain(regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(comment, ""))
	line = regexp.MustCompile(`\bdocs/([a-z-]+\.md(?:#[a-z0-9-]+)?)`).ReplaceAllString(line, "[$0](https://github.com/refvol/refvol/blob/main/$0)")
	return strings.ReplaceAll(line, "|", `\|`)
}

func inline(t *testing.T, value *yaml.Node) string {
	t.Helper()
	node := yaml.NewRNode(value).Copy()
	flow(node.YNode())
	text := must.Get(node.String())(t)
	return plain(text)
}

// flow makes a node and all below it one that is written on one line, without comments.
func flow(node *yaml.Node) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	if node.Kind != yaml.ScalarNode {
		node.Style = yaml.FlowStyle
	}
	for _, below := range node.Content {
		flow(below)
	}
}
