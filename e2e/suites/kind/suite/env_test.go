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

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/joho/godotenv"
	corev1 "k8s.io/api/core/v1"
)

const (
	// envContainers is how many containers a pod has, each with an environment of its
	// own.
	envContainers = 5
	// envPods is how many pods the test starts, unless REFVOL_ENV_PODS says it.
	envPods = 8
)

// An env file holds what a container with the same `envFrom` and `env` has in its
// environment: whether the volume's attributes say so, or the volume takes it from the
// container; for all parsers of the dotenv format, and for a shell.
//
// REFVOL_ENV_SEED repeats a run.
func TestEnvFiles(t *testing.T) {
	t.Parallel()
	seed, pods := setting(t, "REFVOL_ENV_SEED", rand.Uint64()), setting(t, "REFVOL_ENV_PODS", envPods)
	t.Logf("REFVOL_ENV_SEED=%d REFVOL_ENV_PODS=%d", seed, pods)
	for i := range pods {
		t.Run(strconv.FormatUint(i, 10), func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			r := &randomEnv{Rand: rand.New(rand.NewPCG(seed, i))}
			r.createObjects(n)
			p := n.start(r.pod(t))
			for _, c := range p.Spec.Containers {
				t.Run(c.Name, func(t *testing.T) { checkEnvFiles(t, p, c) })
			}
		})
	}
}

// setting reads a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return number
}

// envFile is an env file of a volume, and how to read it.
type envFile struct {
	source, format string
	// parse returns the variables of the file.
	parse func(t *testing.T, content string) map[string]string
	// holds tells whether the format can hold a variable.
	holds func(name, value string) bool
}

// path is in a volume of the container. An event names a file by its path, and is on
// the pod, so the container is in it.
func (f *envFile) path(container string) string {
	return container + "." + f.source + "." + f.format
}

// envFiles returns the files that the volume of a container has.
func envFiles() []envFile {
	var files []envFile
	for _, source := range []string{"env", "podEnv"} {
		files = append(files,
			envFile{source, "dotenv", parseDotenv, func(name, value string) bool {
				// No quoting carries such a value through every parser.
				return isVariable(name) && !strings.HasSuffix(value, `\`) && !strings.HasSuffix(value, `"`)
			}},
			envFile{source, "shell", parseShell, func(name, _ string) bool { return isVariable(name) }},
		)
	}
	return files
}

// isVariable tells whether shells and all parsers take the name. Containers may have
// variables of other names; a file leaves these out.
func isVariable(name string) bool {
	return regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`).MatchString(name)
}

func parseDotenv(t *testing.T, content string) map[string]string {
	t.Helper()
	got, err := godotenv.Unmarshal(content)
	if err != nil {
		t.Fatalf("godotenv: %v: %q", err, content)
	}
	other, err := dotenv.Parse(strings.NewReader(content))
	if err != nil {
		t.Fatalf("compose-go: %v: %q", err, content)
	}
	if !maps.Equal(got, other) {
		t.Errorf("godotenv reads %q, compose-go %q", got, other)
	}
	return got
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
	for _, f := range envFiles() {
		path := f.path(c.Name)
		got := f.parse(t, read(mountDir+c.Name+"/"+path))
		want := maps.Clone(actual)
		for name, value := range actual {
			if _, there := got[name]; !there && !f.holds(name, value) {
				p.awaitSkipped(t, path, name)
				delete(want, name)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %s\nenvFrom %s\nenv %s", path, unlike(want, got), toJSON(t, c.EnvFrom), toJSON(t, c.Env))
		}
	}
}

// setByOthers tells whether a container has the variable from its runtime, or because
// of the API server's Service.
func setByOthers(name string) bool {
	return strings.HasPrefix(name, "KUBERNETES_") || slices.Contains([]string{"PATH", "HOME", "HOSTNAME"}, name)
}

// unlike tells the variables that are not as they should be.
func unlike(want, got map[string]string) string {
	names := maps.Clone(want)
	maps.Copy(names, got)
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w, inWant := want[name]
		g, inGot := got[name]
		if w != g || inWant != inGot {
			texts = append(texts, fmt.Sprintf("%q=%q (%t), want %q (%t)", name, g, inGot, w, inWant))
		}
	}
	return strings.Join(texts, "; ")
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
