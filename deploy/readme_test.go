package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/pkg/check"
)

// TestReadmeExample holds the pods of the Deployment that a newcomer sees first to what the examples
// are held to.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := doclines.Blocks(string(readme), "yaml")
	if len(blocks) == 0 {
		t.Fatal("README.md has no example")
	}
	for _, block := range blocks {
		checkImages(t, only[*appsv1.Deployment](t, decode(t, "README.md", []byte(block))).Spec.Template.Spec)
		checkVolumes(t, check.Options{}, []byte(block))
	}
}

// documents returns the documents of the repository by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../site/*.md", "../e2e/*.md", "../e2e/*/*.md", "../e2e/*/*/*.md", "../deploy/*/*.md", "../deploy/*/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[strings.TrimPrefix(file, "../")] = string(text)
		}
	}
	return texts
}

// TestDocumentedLinks has every file that a document links to exist, with the heading.
func TestDocumentedLinks(t *testing.T) {
	texts := documents(t)
	for document, text := range texts {
		for _, link := range regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]+))?\)`).FindAllStringSubmatch(text, -1) {
			target := document
			if link[1] != "" {
				target = filepath.Join(filepath.Dir(document), link[1])
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s: %v", document, err)
			}
			if link[2] == "" {
				continue
			}
			headings := anchors(texts[target])
			if i := slices.Index(headings, link[2]); i < 0 || slices.Contains(headings[i+1:], link[2]) {
				t.Errorf("%s links to #%s of %s, which has no such heading, or two", document, link[2], target)
			}
		}
	}
}

// anchors returns what links to the headings of a document end with.
func anchors(text string) []string {
	var all []string
	for _, part := range doclines.Parts(text) {
		if part.IsBlock {
			continue
		}
		for _, heading := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(part.Text, -1) {
			plain := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
			all = append(all, strings.ReplaceAll(plain, " ", "-"))
		}
	}
	return all
}
