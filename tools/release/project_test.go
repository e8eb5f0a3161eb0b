package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type job struct {
	Defaults struct {
		Run struct {
			Shell string `json:"shell"`
		} `json:"run"`
	} `json:"defaults"`
	Permissions map[string]string `json:"permissions"`
	Uses        string            `json:"uses"`
	Needs       string            `json:"needs"`
	Steps       []struct {
		Name string            `json:"name"`
		Uses string            `json:"uses"`
		With map[string]string `json:"with"`
		Run  string            `json:"run"`
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
		text := must(os.ReadFile(file))(t)
		var w workflow
		if err := yaml.Unmarshal(text, &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found[filepath.Base(file)] = w
	}
	return found
}

// TestWorkflows wants the full commit of every action: a tag can be moved. A workflow of the same commit needs none. A workflow
// as a whole may read at most. A job of the release may write. Others may write what is named here. The tests pass before a
// commit is published.
func TestWorkflows(t *testing.T) {
	pinned := regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
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
		used := 0
		for id, j := range w.Jobs {
			for what, how := range j.Permissions {
				if name != "release.yml" && how != "read" && !slices.Contains(strings.Fields(may[name+" "+id]), what) {
					t.Errorf("%s: job %s may %s %s", name, id, how, what)
				}
			}
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
	jobs := workflows(t)["release.yml"].Jobs
	if jobs["test"].Uses != "./.github/workflows/ci.yml" || jobs["release"].Needs != "test" {
		t.Errorf("release.yml has %+v", jobs)
	}
}

// TestReleaseSignsAllThatItPushes runs the workflow's own scripts, with programs that write down how they are called, and gives each thing
// that is pushed its own digest.
func TestReleaseSignsAllThatItPushes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		name = filepath.Join(dir, name)
		fatal(t, os.MkdirAll(filepath.Dir(name), 0o755))
		fatal(t, os.WriteFile(name, []byte(content), 0o755))
	}
	// A digest is that of the name.
	const digestOf = `sha256sum <<<"${reference##*/}" | sed 's/^/sha256:/; s/ .*//'`
	write("programs/skopeo", "#!/bin/bash\nset -e\necho \"skopeo $*\" >>calls\nreference=${6-}\n[ \"$1\" != copy ] || { "+digestOf+"; } >\"$4\"\n")
	write("programs/helm", "#!/bin/bash\nset -e\necho \"helm $*\" >>calls\nreference=$2\n[ \"$1\" != push ] || { echo Pushed: it; echo \"Digest: $("+digestOf+")\"; } >&2\n")
	write("programs/cosign", "#!/bin/sh\necho \"cosign $*\" >>calls\n")
	digest := func(pushed string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(pushed+"\n"))) }

	chart := "refvol-" + strings.TrimPrefix(testVersion, "v") + ".tgz"
	write("bin/release/"+chart, "")
	want := []string{
		"helm push bin/release/" + chart + " oci://ghcr.io/refvol/charts",
		"cosign sign --yes ghcr.io/refvol/charts/refvol@" + digest(chart),
		"cosign sign-blob --yes --bundle bin/release/SHA256SUMS.sigstore.json bin/release/SHA256SUMS",
	}
	outputs := map[string]string{"charts/refvol": "chart"}
	digests := []string{"chart=" + digest(chart)}
	for _, p := range programs() {
		write("bin/release/"+p.name+"-image.tar", "")
		pushed := p.name + ":" + testVersion
		image := registry + p.name + "@" + digest(pushed)
		want = append(want, "skopeo copy --all --digestfile "+dir+"/digest oci-archive:bin/release/"+p.name+"-image.tar docker://"+registry+pushed,
			"cosign sign --yes --recursive "+image)
		for _, on := range p.platforms {
			bill := "bin/release/" + p.name + "_" + on.String() + ".cdx.json"
			write(bill, "")
			if on.os == "linux" {
				want = append(want, "cosign attest --yes --type cyclonedx --predicate "+bill+" "+image)
			}
		}
		outputs[p.name] = p.name
		digests = append(digests, p.name+"="+digest(pushed))
	}

	release := workflows(t)["release.yml"].Jobs["release"]
	if shell := release.Defaults.Run.Shell; shell != "bash" { // with -eo pipefail
		t.Errorf("the scripts' shell is %q", shell)
	}
	for _, step := range release.Steps {
		if step.Name == "Push the images and the chart" || step.Name == "Sign" {
			cmd := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", step.Run)
			cmd.Dir = dir
			cmd.Env = []string{
				"PATH=" + dir + "/programs:" + os.Getenv("PATH"), "RUNNER_TEMP=" + dir, "GITHUB_OUTPUT=" + dir + "/outputs",
				"VERSION=" + testVersion, "REGISTRY=" + strings.TrimSuffix(registry, "/"), "GITHUB_ACTOR=actor", "TOKEN=token",
			}
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", step.Name, err, output)
			}
		}
	}
	calls := slices.DeleteFunc(lines(t, dir, "calls"), func(call string) bool { return strings.Contains(call, " login ") })
	slices.Sort(calls)
	slices.Sort(want)
	if !slices.Equal(calls, want) {
		t.Errorf("the workflow calls\n%s\nwant\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
	got := lines(t, dir, "outputs")
	slices.Sort(got)
	slices.Sort(digests)
	if !slices.Equal(got, digests) {
		t.Errorf("the steps that attest provenance get %q, want %q", got, digests)
	}
	// The provenance of the files, and of each thing in the registry.
	attested := map[string]string{}
	for _, step := range release.Steps {
		if strings.HasPrefix(step.Uses, "actions/attest-build-provenance@") {
			if name := step.With["subject-name"]; name != "" && step.With["push-to-registry"] == "true" {
				attested[name] = step.With["subject-digest"]
			} else {
				attested[step.With["subject-checksums"]] = ""
			}
		}
	}
	if _, there := attested["bin/release/SHA256SUMS"]; !there || len(attested) != len(outputs)+1 {
		t.Errorf("the provenance of %q is attested", attested)
	}
	for name, output := range outputs {
		if got, want := attested["${{ env.REGISTRY }}/"+name], "${{ steps.push.outputs."+output+" }}"; got != want {
			t.Errorf("the provenance of %s is attested for %q, want %q", name, got, want)
		}
	}
}

// TestDockerfile wants the toolchain of go.mod, in an image that nobody can exchange, and all that it copies in the build's context.
func TestDockerfile(t *testing.T) {
	text, goMod := readRoot(t, "Dockerfile"), readRoot(t, "go.mod")
	version := regexp.MustCompile(`\ntoolchain go(\d+\.\d+\.\d+)\n`).FindStringSubmatch(goMod)
	if version == nil || !strings.Contains(readRoot(t, "cmd/kubectl-refvol/go.mod"), version[0]) {
		t.Fatalf("go.mod and cmd/kubectl-refvol/go.mod don't name the same toolchain: %q", version)
	}
	image := regexp.MustCompile(`\nARG GO_IMAGE=docker\.io/library/golang:(\S+)@sha256:[0-9a-f]{64}\n`).FindStringSubmatch(text)
	if image == nil || image[1] != version[1] {
		t.Errorf("the base image is not golang:%s with a digest: %q", version[1], image)
	}
	for _, source := range regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(text, -1) {
		for name := range strings.FieldsSeq(source[1]) {
			if !strings.Contains(readRoot(t, ".dockerignore"), "\n!"+name+"\n") {
				t.Errorf(".dockerignore leaves out %s", name)
			}
		}
	}
}

func readRoot(t *testing.T, name string) string {
	t.Helper()
	return string(read(t, checkout(t), name))
}
