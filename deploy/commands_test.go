package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/strvals"

	"github.com/refvol/refvol/internal/doclines"
)

// TestDocumentedMake: the documents name targets that the Makefile has.
func TestDocumentedMake(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range doclines.Find(t, "..", "make", 19) {
		for _, word := range line.Args[1:] {
			if !strings.Contains(word, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(word)+`:`).Match(makefile) {
				t.Errorf("%s: the Makefile has no %s", &line, word)
			}
		}
	}
}

// TestDocumentedValues: what the documents set with helm are values of the chart.
func TestDocumentedValues(t *testing.T) {
	loaded, err := load()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for document, text := range documents(t) {
		for _, set := range regexp.MustCompile(`--set (?:'([^']+)'|([^\s'`+"`"+`\\]+))`).FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(set[2], "canary") { // of a chart of the reader's
				continue
			}
			found++
			values, err := strvals.Parse(set[1] + set[2])
			if err != nil {
				t.Errorf("%s: %s: %v", document, set[0], err)
				continue
			}
			all, err := util.CoalesceValues(loaded, values)
			if err == nil {
				err = util.ValidateAgainstSchema(loaded, all)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", document, set[0], err)
			}
		}
	}
	if found < 5 {
		t.Errorf("the documents set values %d times", found)
	}
}

// TestDocumentedLabels: kubectl label and annotate take the objects first, and then the pairs.
func TestDocumentedLabels(t *testing.T) {
	for _, line := range doclines.Find(t, "..", "kubectl", 100) {
		at := max(slices.Index(line.Args, "label"), slices.Index(line.Args, "annotate"))
		if at < 0 {
			continue
		}
		hasPair := false
		for i, word := range line.Args[at+1:] {
			isFlag := strings.HasPrefix(word, "-") || slices.Contains([]string{"-n", "--namespace", "-o", "-f"}, line.Args[at+i])
			isPair := strings.Contains(word, "=") && !strings.HasPrefix(word, "$(") // a command gives names
			if !isFlag && hasPair && !isPair {
				t.Errorf("%s: %s comes after a pair", &line, word)
			}
			hasPair = hasPair || !isFlag && isPair
		}
	}
}
