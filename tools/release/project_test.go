package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// job is what a test reads of a workflow's job.
type job struct {
	Permissions map[string]string `json:"permissions"`
	Uses        string            `json:"uses"`
	Needs       string            `json:"needs"`
	Steps       []struct {
		Uses string `json:"uses"`
		Run  string `json:"run"`
	} `json:"steps"`
}

// workflow is what a test reads of a workflow. No permissions at all would mean the repository's
// default ones.
type workflow struct {
	Permissions *map[string]string `json:"permissions"`
	Jobs        map[string]job     `json:"jobs"`
}

func workflows(t *testing.T) map[string]workflow {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(checkout(t), ".github", "workflows", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("workflows %q, %v", files, err)
	}
	found := map[string]workflow{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var w workflow
		if err := yaml.Unmarshal(text, &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found[filepath.Base(file)] = w
	}
	return found
}

// TestWorkflowsPinWhatTheyUse wants the full commit of every action: a tag can be moved. A workflow of the same
// commit needs none.
func TestWorkflowsPinWhatTheyUse(t *testing.T) {
	pinned := regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	for name, w := range workflows(t) {
		used := 0
		for _, j := range w.Jobs {
			uses := []string{j.Uses}
			for _, step := range j.Steps {
				uses = append(uses, step.Uses)
			}
			for _, u := range uses {
				if u != "" && !strings.HasPrefix(u, "./") && !pinned.MatchString(u) {
					t.Errorf("%s uses %s, which is no full commit", name, u)
				}
				used += len(u)
			}
		}
		if used == 0 {
			t.Errorf("%s uses nothing, so it was not understood", name)
		}
	}
}

// TestWorkflowsHaveFewRights lets a workflow as a whole read at most. A job of the release may
// write. Others may write what is named here.
func TestWorkflowsHaveFewRights(t *testing.T) {
	may := map[string]string{
		"docs.yml publish":      "pages id-token",
		"codeql.yml analyze":    "security-events",
		"scorecard.yml analyze": "security-events id-token",
	}
	for name, w := range workflows(t) {
		if w.Permissions == nil {
			t.Errorf("%s does not say which permissions it has", name)
			continue
		}
		for what, how := range *w.Permissions {
			if how != "read" && how != "none" {
				t.Errorf("%s as a whole may %s %s", name, how, what)
			}
		}
		for id, j := range w.Jobs {
			for what, how := range j.Permissions {
				if name != "release.yml" && how != "read" && !slices.Contains(strings.Fields(may[name+" "+id]), what) {
					t.Errorf("%s: job %s may %s %s", name, id, how, what)
				}
			}
		}
	}
}

// TestReleaseNeedsTheTests wants the tests to pass before a commit is published.
func TestReleaseNeedsTheTests(t *testing.T) {
	jobs := workflows(t)["release.yml"].Jobs
	if jobs["test"].Uses != "./.github/workflows/ci.yml" || jobs["release"].Needs != "test" {
		t.Errorf("release.yml has %+v", jobs)
	}
}

// TestReleasePushesEveryImage wants each archive in the registry, signed.
func TestReleasePushesEveryImage(t *testing.T) {
	var runs strings.Builder
	for _, step := range workflows(t)["release.yml"].Jobs["release"].Steps {
		runs.WriteString(step.Run)
	}
	pushed := regexp.MustCompile(`for name in (.*); do\n\s+skopeo copy `).FindStringSubmatch(runs.String())
	if pushed == nil {
		t.Fatal("release.yml pushes no list of images")
	}
	for _, p := range programs() {
		if !slices.Contains(strings.Fields(pushed[1]), p.name) || !strings.Contains(runs.String(), `"$REGISTRY/`+p.name+`@$`) {
			t.Errorf("release.yml does not push and sign the image of %s", p.name)
		}
	}
}
