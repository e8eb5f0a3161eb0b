package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// shell runs commands of documents against a release, whose names replace theirs.
type shell struct {
	*release
	// pods is the namespace of the pods.
	pods  *namespace
	names *strings.Replacer
	env   []string
}

func newShell(t *testing.T, prefix string) *shell {
	t.Helper()
	dir := t.TempDir()
	s := &shell{release: newRelease(t, prefix), pods: newNamespace(t)}
	s.env = append(os.Environ(), "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+s.kubeconfig(dir))
	for name, program := range map[string]string{"kubectl": os.Getenv("REFVOL_KUBECTL"), "kubectl-refvol": os.Getenv("REFVOL_KUBECTL_REFVOL"), "helm": s.program} {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.rename()
	return s
}

// stranger follows the document.
type stranger struct {
	*shell
	kitchen *kitchen
	// document and runbook are texts; commands are those of the document that have not been run.
	document, runbook string
	commands          []string
}

func newStranger(t *testing.T) *stranger {
	t.Helper()
	kinds := filepath.Join(t.TempDir(), "kinds.yaml")
	if err := os.WriteFile(kinds, []byte(harness.PrometheusKinds), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(kubectl(t.Context(), "apply", "--filename="+kinds),
		kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout="+podTimeout.String(), "--filename="+kinds)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kubectl(context.WithoutCancel(t.Context()), "delete", "--filename="+kinds); err != nil {
			t.Error(err)
		}
	})
	s := &stranger{shell: newShell(t, "stranger"), kitchen: newKitchen(t)}
	s.kitchen.namespaces["default"] = s.pods
	for file, text := range map[string]*string{"getting-started.md": &s.document, "runbook.md": &s.runbook} {
		content, err := os.ReadFile("../../../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		*text = string(content)
	}
	for _, match := range regexp.MustCompile(`(?m)^(?:\$ |    )((?:make|docker|helm|kubectl) (?:.*\\\n)*.*)$`).FindAllStringSubmatch(s.document, -1) {
		s.commands = append(s.commands, match[1])
	}
	return s
}

// rename has the commands name the release, the chart and the images of the test.
func (s *shell) rename() {
	registry, repository, tag := s.imageParts()
	flags := fmt.Sprintf(" --plugin-namespace=%s --plugin-selector=app.kubernetes.io/name=%s --driver-name=%s", s.name, s.app, s.driver)
	s.names = strings.NewReplacer("refvol-system", s.name, "daemonset/refvol-plugin", "daemonset/"+s.app, "refvol-uninstall-check", s.check,
		"deploy/charts/refvol", s.chart, "refvol converged", "refvol converged"+flags, "refvol status", "refvol status"+flags,
		"image.registry=registry.example.com,image.tag=v0.1.0", "image.registry="+registry+",image.repository="+repository+",image.tag="+tag,
		"image.tag=v0.2.0", "image.tag="+tag+"-newer", "--timeout 60s", "--timeout 10m", "helm uninstall refvol", "helm uninstall refvol --timeout 20m")
}

// newer is the image that the upgrade brings.
func (s *shell) newer() string { return s.image + "-newer" }

// kubeconfig returns a file whose namespace is that of the pods.
func (s *shell) kubeconfig(dir string) string {
	s.t.Helper()
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		s.t.Fatal(err)
	}
	config.Contexts[config.CurrentContext].Namespace = s.pods.name
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// run has a shell run a command, and returns what it printed; its warnings only with an error.
func (s *shell) run(command string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), "sh", "-c", s.names.Replace(command))
	cmd.Env = s.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

func (s *shell) output(command string) string {
	s.t.Helper()
	out, err := s.run(command)
	if err != nil {
		s.t.Fatalf("%s: %v: %s", command, err, out)
	}
	return out
}

// refusesDefaults reports whether the cluster is too old for the chart's default identity, and checks that helm then says what to do.
func (s *shell) refusesDefaults(install string) bool {
	s.t.Helper()
	server, err := s.client.Discovery().ServerVersion()
	if err != nil {
		s.t.Fatal(err)
	}
	if version.MustParse(server.GitVersion).AtLeast(version.MajorMinor(1, 36)) {
		return false
	}
	out, err := s.run(install)
	if err == nil || !strings.Contains(out, "identity=node needs Kubernetes 1.36 or newer") || !strings.Contains(out, "set identity=pod") {
		s.t.Errorf("%s: %v: %s", install, err, out)
	}
	s.t.Log("left out but for the install: the chart's default needs Kubernetes 1.36")
	return true
}

// next takes the next command of the document, which begins with a text.
func (s *stranger) next(begins string) string {
	s.t.Helper()
	if len(s.commands) == 0 || !strings.HasPrefix(s.commands[0], begins) {
		s.t.Fatalf("the next commands of the document are %q, want %s", s.commands, begins)
	}
	command := s.commands[0]
	s.commands = s.commands[1:]
	return command
}

// skip leaves out commands that need what the test has not: a registry.
func (s *stranger) skip(begin ...string) {
	s.t.Helper()
	for _, begins := range begin {
		s.next(begins)
	}
}

// does runs the next command, with more arguments, and returns what it printed.
func (s *stranger) does(begins string, args ...string) string {
	s.t.Helper()
	return s.output(strings.Join(append([]string{s.next(begins)}, args...), " "))
}

// shows runs the next command until it prints a line.
func (s *stranger) shows(begins, line string) {
	s.t.Helper()
	command := s.next(begins)
	eventually(s.t, podTimeout, command+" prints "+line, func(context.Context) error {
		out, err := s.run(command)
		if err == nil && out != line+"\n" {
			err = errors.New("it does not")
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

// said returns the flag that the document says in its text.
func (s *stranger) said(flag string) string {
	s.t.Helper()
	if !strings.Contains(s.document, "`"+flag+"`") {
		s.t.Fatalf("the document does not say %s", flag)
	}
	return flag
}

// yaml returns the document's objects, with the test's driver.
func (s *stranger) yaml() string {
	s.t.Helper()
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(s.document)
	if block == nil {
		s.t.Fatal("the document has no objects")
	}
	return strings.ReplaceAll(block[1], driver, s.driver)
}

// running waits for a pod.
func (s *stranger) running(name string) *pod {
	s.t.Helper()
	p := &pod{s.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.pods.name}}}
	p.awaitReady()
	return p
}

// find wants a line of a text that has all words.
func (s *shell) find(text string, words ...string) {
	s.t.Helper()
	if len(linesWith(text, words...)) == 0 {
		s.t.Errorf("no line has %q in\n%s", words, text)
	}
}

// runbookStatus returns the runbook's command that lists the volumes of a node.
func (s *stranger) runbookStatus() string {
	s.t.Helper()
	command := regexp.MustCompile(`kubectl .* exec POD -- .*`).FindString(s.runbook)
	if command == "" {
		s.t.Fatal("the runbook has no command for the status of a node")
	}
	return command
}
