package suite

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// envContainers is how many containers a pod has, each with an environment of its own.
const envContainers = 5

// An env file holds what a container with the same `envFrom` and `env` has in its
// environment: whether the volume's attributes say so, or the volume takes it from the
// container.
func TestEnvFiles(t *testing.T) {
	t.Parallel()
	seed := harness.Seed(t)
	for i := range harness.Scaled(8, 40) {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			r := &randomEnv{Rand: rand.New(rand.NewPCG(seed, uint64(i)))}
			r.createObjects(n)
			p := n.start(r.pod(t))
			for _, c := range p.Spec.Containers {
				t.Run(c.Name, func(t *testing.T) { checkEnvFiles(t, p, c) })
			}
		})
	}
}

// envSourceKinds are the sources of the env files that a container's volume has.
func envSourceKinds() []string { return []string{"env", "podEnv"} }

// envPath is in a volume of the container. An event names a file by its path, and is on
// the pod, so the container is in it.
func envPath(container, source string) string { return container + "." + source }

// isVariable tells whether shells take the name. Containers may have
// variables of other names; a file leaves these out.
func isVariable(name string) bool {
	return regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`).MatchString(name)
}

// parseShell has the shell of this machine source the file.
func parseShell(t *testing.T, content string) map[string]string {
	t.Helper()
	program, err := exec.LookPath("env")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "env.sh")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `set -a; . "$0"; exec `+program+" -0", file)
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sh: %v: %q", err, content)
	}
	got := environment(string(out))
	// The shell's own.
	for _, name := range []string{"PWD", "OLDPWD", "SHLVL", "_"} {
		delete(got, name)
	}
	return got
}

// environment reads variables that each end with a NUL.
func environment(text string) map[string]string {
	variables := map[string]string{}
	for variable := range strings.SplitSeq(strings.TrimSuffix(text, "\x00"), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		variables[name] = value
	}
	return variables
}

// checkEnvFiles compares the files of a container's volume with the environment of the
// container's first process.
func checkEnvFiles(t *testing.T, p *pod, c corev1.Container) {
	t.Helper()
	read := func(file string) string {
		content, err := p.ask(t.Context(), c.Name, "read", file)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	actual := environment(read("/proc/1/environ"))
	maps.DeleteFunc(actual, func(name, _ string) bool { return setByOthers(name) })
	for _, source := range envSourceKinds() {
		path := envPath(c.Name, source)
		got := parseShell(t, read(mountDir+c.Name+"/"+path))
		want := maps.Clone(actual)
		for name := range actual {
			if _, there := got[name]; !there && !isVariable(name) {
				p.awaitSkipped(t, path, name)
				delete(want, name)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: got %q\nwant %q\nenvFrom %s\nenv %s", path, got, want, toJSON(t, c.EnvFrom), toJSON(t, c.Env))
		}
	}
}

// setByOthers tells whether a container has the variable from its runtime (TERM from CRI-O), or because
// of the API server's Service.
func setByOthers(name string) bool {
	return strings.HasPrefix(name, "KUBERNETES_") || slices.Contains([]string{"PATH", "HOME", "HOSTNAME", "TERM"}, name)
}

// awaitSkipped waits for the event that names a variable which a file leaves out.
func (p *pod) awaitSkipped(t *testing.T, file, name string) {
	t.Helper()
	eventually(t, podTimeout, fmt.Sprintf("event about %q of %s", name, file), func(ctx context.Context) error {
		events, err := p.client.CoreV1().Events(p.Namespace).List(ctx, listEventsOf(p))
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "InvalidEnvironmentVariableNames" && skipped(e.Message, file, name) {
				return nil
			}
		}
		return fmt.Errorf("none among %d events", len(events.Items))
	})
}

// skipped says whether an event's message names a variable of a file, or says that there are
// more than it names.
func skipped(message, file, name string) bool {
	for part := range strings.SplitSeq(message, "; ") {
		if strings.HasPrefix(part, file+": ") {
			names := part[strings.LastIndex(part, ": ")+len(": "):]
			return strings.HasSuffix(names, " more") || slices.Contains(strings.Split(names, ", "), name)
		}
	}
	return false
}
