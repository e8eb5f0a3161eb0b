package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/refvol/refvol/internal/doclines"
)

// plain returns a document with each run of spaces and line ends as one space.
func plain(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestDocumentedHelm: each command of helm on the release names its namespace. Without that helm finds no release.
func TestDocumentedHelm(t *testing.T) {
	command := regexp.MustCompile(`helm (?:install|upgrade|uninstall|rollback) refvol [^$]{0,120}`)
	found := 0
	for document, text := range documents(t) {
		for _, got := range command.FindAllString(plain(text), -1) {
			found++
			if !strings.Contains(got, "--namespace refvol-system") {
				t.Errorf("%s: %q names no namespace", document, got)
			}
		}
	}
	if found == 0 {
		t.Error("no document has such a command")
	}
}

// TestDocumentedAlertTimes: where a document says after what time an alert comes, that is the time of the rule.
func TestDocumentedAlertTimes(t *testing.T) {
	stale := regexp.MustCompile(`^refvol_object_staleness_max_seconds\S* > (\d+)$`)
	times := map[string]time.Duration{}
	for _, group := range alerts(t) {
		for _, rule := range group.Rules {
			wait, err := time.ParseDuration(string(*rule.For))
			if err != nil {
				t.Fatal(err)
			}
			if seconds := stale.FindStringSubmatch(strings.TrimSpace(strings.ReplaceAll(rule.Expr.String(), ", ", ","))); seconds != nil {
				n, _ := strconv.Atoi(seconds[1])
				wait += time.Duration(n) * time.Second
			}
			times[rule.Alert] = wait
		}
	}
	says := regexp.MustCompile("`(Refvol[A-Za-z]+)`(?: fires)? after (\\S+) minutes")
	found := 0
	for document, text := range documents(t) {
		for _, got := range says.FindAllStringSubmatch(plain(text), -1) {
			found++
			if want := strconv.Itoa(int(times[got[1]].Minutes())); got[2] != want {
				t.Errorf("%s says that %s comes after %s minutes, want %s", document, got[1], got[2], want)
			}
		}
	}
	if found < 2 {
		t.Errorf("documents have %d times of alerts, want 2 or more", found)
	}
}

// TestDocumentedImage: the kustomization of docs/install.md has the image that docs/getting-started.md pushes.
func TestDocumentedImage(t *testing.T) {
	texts := documents(t)
	pushed := regexp.MustCompile(`docker push (\S+):(\S+)`).FindStringSubmatch(texts["docs/getting-started.md"])
	used := regexp.MustCompile(`newName: (\S+), newTag: (\S+)}`).FindStringSubmatch(texts["docs/install.md"])
	if pushed == nil || used == nil || !slices.Equal(pushed[1:], used[1:]) {
		t.Errorf("the image %q is pushed, and %q is installed", pushed, used)
	}
}

// TestDocumentedNodeLabel: the command that labels the nodes with the plugin finds its pods.
func TestDocumentedNodeLabel(t *testing.T) {
	command := regexp.MustCompile(`label nodes \$\(kubectl --namespace (\S+) get pods --selector (\S+)=(\S+) .*?\) refvol\.dev/plugin=true `).
		FindStringSubmatch(plain(documents(t)["docs/live-namespaces.md"]))
	if command == nil {
		t.Fatal("docs/live-namespaces.md has no such command")
	}
	plugin := only[*appsv1.DaemonSet](t, renderWith(t, nil))
	if command[1] != plugin.Namespace || plugin.Spec.Template.Labels[command[2]] != command[3] {
		t.Errorf("the command takes pods with %q, and the plugin's have %v", command[1:], plugin.Spec.Template.Labels)
	}
}

// TestManifestsNameDocuments: a document that a manifest names exists, with the heading.
func TestManifestsNameDocuments(t *testing.T) {
	texts := documents(t)
	named := regexp.MustCompile(`\b(docs/[a-z-]+\.md)(?:#([a-z0-9-]+))?`)
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".yaml", ".tpl", ".txt"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, got := range named.FindAllStringSubmatch(string(text), -1) {
			if document, ok := texts[got[1]]; !ok || got[2] != "" && !slices.Contains(anchors(document), got[2]) {
				t.Errorf("%s names %s, which is not there", path, got[0])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDocumentedBlocks: each block of code has a fence and a language, and commands stand without a prompt.
func TestDocumentedBlocks(t *testing.T) {
	languages := []string{"go", "json", "sh", "text", "yaml"}
	item := regexp.MustCompile(`^ *(?:[-*]|\d+\.) +`)
	for document, text := range documents(t) {
		for _, part := range doclines.Parts(text) {
			switch {
			case part.IsBlock && !slices.Contains(languages, part.Language):
				t.Errorf("%s:%d: the language is %q, want one of %q", document, part.Line, part.Language, languages)
			case part.IsBlock && regexp.MustCompile(`(?m)^\$ `).MatchString(part.Text):
				t.Errorf("%s:%d: a command has a prompt", document, part.Line)
			}
			if part.IsBlock {
				continue
			}
			content, isAfterBlank := 0, false // where the text of the list's item begins
			for i, line := range strings.Split(part.Text, "\n") {
				indent := len(line) - len(strings.TrimLeft(line, " "))
				switch marker := item.FindString(line); {
				case strings.TrimSpace(line) == "":
				case isAfterBlank && indent >= content+4:
					t.Errorf("%s:%d: a block of code is indented: put it between fences", document, part.Line+i)
				case marker != "":
					content = len(marker)
				case isAfterBlank:
					content = min(content, indent)
				}
				isAfterBlank = strings.TrimSpace(line) == ""
			}
		}
	}
}

// TestDocumentedSuites: in CONTRIBUTING.md each suite exists, and the tier of a promise is the highest one of its suites.
func TestDocumentedSuites(t *testing.T) {
	tiers := []string{"unit", "integration", "kernels", "kind"}
	rows := regexp.MustCompile("(?m)^\\| [^|]+ \\| ([a-z]+)(?:; [^|]*)? \\| ([^|;]*`)(?:; [^|]*)? \\|$").
		FindAllStringSubmatch(documents(t)["CONTRIBUTING.md"], -1)
	if len(rows) < 20 {
		t.Fatalf("CONTRIBUTING.md has %d promises", len(rows))
	}
	for _, row := range rows {
		highest := -1
		for _, suite := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			tier, dir := "integration", filepath.Join("../e2e/suites", suite[1])
			switch {
			case suite[1] == "deploy":
				dir = "../deploy"
			case strings.HasPrefix(suite[1], "pkg/"), strings.HasPrefix(suite[1], "internal/"):
				tier, dir = "unit", filepath.Join("..", suite[1])
			case slices.Contains(tiers, suite[1]):
				tier = suite[1]
			}
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("%s: %v", row[0], err)
			}
			highest = max(highest, slices.Index(tiers, tier))
		}
		if row[1] != tiers[max(highest, 0)] {
			t.Errorf("%s is proven by %s, want %s", row[0], row[1], tiers[max(highest, 0)])
		}
	}
}
