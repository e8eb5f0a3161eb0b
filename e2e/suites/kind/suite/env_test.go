package suite

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/must"
)

// environments are containers whose variables come from all sources, and are hard to quote or to expand.
const environments = `
- name: objects
  envFrom:
  - configMapRef: {name: one}
  - secretRef: {name: one}
  - {prefix: P_, configMapRef: {name: two}}
  - {prefix: "1", configMapRef: {name: one}}
  - {prefix: p.q-, secretRef: {name: one}}
  - configMapRef: {name: absent, optional: true}
  - secretRef: {name: absent, optional: true}
- name: variables
  envFrom:
  - secretRef: {name: one}
  - {prefix: P_, configMapRef: {name: one}}
  env:
  - {name: V1, value: "$(A)$(P_A)$(V2)$$(A)$$$(A)$(UNKNOWN)$()$(a.b)$A${A}$é$(A$(B))$("}
  - {name: V2, value: "$(V1) $(A"}
  - {name: A, value: over the Secret}
  - {name: V3, value: "$(A) #x"}
  - {name: V1, value: "again $(V2)"}
  - {name: a.b, value: "1"}
  - {name: 1A, value: "2"}
  - {name: sp ace, value: "3"}
  - {name: 'q"uote', value: "4"}
  - {name: $X, value: "5"}
  - {name: X(, value: "6"}
  - {name: lower, valueFrom: {configMapKeyRef: {name: one, key: A}}}
  - {name: _x, valueFrom: {secretKeyRef: {name: one, key: a.b}}}
  - {name: NO_KEY, valueFrom: {secretKeyRef: {name: one, key: absent, optional: true}}}
  - {name: NO_OBJECT, valueFrom: {configMapKeyRef: {name: absent, key: A, optional: true}}}
  - {name: NO_TEXT, valueFrom: {configMapKeyRef: {name: one, key: binary, optional: true}}}
  - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  - {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
`

// An env file holds what a container with the same `envFrom` and `env` has in its
// environment: whether the volume's attributes say so, or the volume takes it from the
// container.
func TestEnvFiles(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.put(kindConfigMap, "one", contents{
		text:   map[string]string{"A": "'\"`\\$#\n\r\t =;!~(){é😀\u2028\x01", "B": "$(A)\\n''", "a_b": "", "a.b": "export X=1\n", "a-b": "A=x\n", "1A": "1", "-x": "2", ".x": "3"},
		binary: map[string][]byte{"binary": notText()},
	})
	n.put(kindConfigMap, "two", contents{text: map[string]string{"A": " # x", "C": "\n"}})
	n.put(kindSecret, "one", contents{text: map[string]string{"A": "of the Secret", "B": "#x", "a.b": "$(A)$A`", "1A": ""}})
	p := n.start(envPod(t))
	for _, c := range p.Spec.Containers {
		t.Run(c.Name, func(t *testing.T) { checkEnvFiles(t, p, c) })
	}
}

// envPod describes a pod with the environments. Each container has a volume with the env files that are to hold the same.
func envPod(t *testing.T) *corev1.Pod {
	t.Helper()
	var containers []corev1.Container
	must.Do(t, yaml.UnmarshalStrict([]byte(environments), &containers))
	spec := newPod("reader")
	spec.Spec.EnableServiceLinks = new(false)
	spec.Spec.Containers = nil
	for _, env := range containers {
		file := func(source string) string { return env.Name + "." + source } // an event names a file by its path, and is on the pod
		sources := toJSON(t, []map[string]any{
			{"env": map[string]any{"path": file("env"), "format": "shell", "envFrom": env.EnvFrom, "env": env.Env}},
			{"podEnv": map[string]any{"path": file("podEnv"), "format": "shell", "container": env.Name}},
		})
		volume := refvol(env.Name, attributes{"sources": sources})
		c := newContainer(env.Name, []corev1.Volume{volume})
		c.EnvFrom, c.Env = env.EnvFrom, env.Env
		spec.Spec.Containers = append(spec.Spec.Containers, c)
		spec.Spec.Volumes = append(spec.Spec.Volumes, volume)
	}
	return spec
}

// variable is what shells take as a name. Containers may have
// variables of other names; a file leaves these out.
var variable = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// parseShell has the shell of this machine source the file.
func parseShell(t *testing.T, content string) map[string]string {
	t.Helper()
	program := must.Get(exec.LookPath("env"))(t)
	file := filepath.Join(t.TempDir(), "env.sh")
	must.Do(t, os.WriteFile(file, []byte(content), 0o600))
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
		return must.Get(p.ask(t.Context(), c.Name, "read", file))(t)
	}
	actual := environment(read("/proc/1/environ"))
	maps.DeleteFunc(actual, func(name, _ string) bool { // of the runtime (TERM from CRI-O), and of the API server's Service
		return strings.HasPrefix(name, "KUBERNETES_") || slices.Contains([]string{"PATH", "HOME", "HOSTNAME", "TERM"}, name)
	})
	for _, source := range []string{"env", "podEnv"} {
		got := parseShell(t, read(mountDir+c.Name+"/"+c.Name+"."+source))
		want := maps.Clone(actual)
		maps.DeleteFunc(want, func(name, _ string) bool { // an event tells of these
			_, there := got[name]
			return !there && !variable.MatchString(name)
		})
		if !maps.Equal(got, want) {
			t.Errorf("%s: got %q\nwant %q\nenvFrom %s\nenv %s", source, got, want, toJSON(t, c.EnvFrom), toJSON(t, c.Env))
		}
	}
}
