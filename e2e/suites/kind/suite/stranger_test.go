package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/doclines"
)

// installer is a shell for a release, whose names replace those of the documents.
type installer struct {
	*release
	*shell
}

func newInstaller(t *testing.T, prefix string) *installer {
	t.Helper()
	r := newRelease(t, prefix)
	registry, repository, tag := r.imageParts()
	flags := fmt.Sprintf(" --plugin-namespace=%s --plugin-selector=app.kubernetes.io/name=%s --driver-name=%s", r.name, r.app, r.driver)
	return &installer{r, newShell(newNamespace(t), "refvol-system", r.name, "daemonset/refvol-plugin", "daemonset/"+r.app, "refvol-uninstall-check", r.check,
		"deploy/charts/refvol", r.chart, "refvol converged", "refvol converged"+flags, "refvol status", "refvol status"+flags,
		"image.registry=registry.example.com,image.tag=v0.1.0", "image.registry="+registry+",image.repository="+repository+",image.tag="+tag,
		"image.tag=v0.2.0", "image.tag="+tag+"-newer", "--timeout 60s", "--timeout 10m", "helm uninstall refvol", "helm uninstall refvol --timeout 20m")}
}

// stranger follows the document.
type stranger struct {
	*installer
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
	s := &stranger{installer: newInstaller(t, "stranger")}
	s.document, s.runbook = read(t, "../../../../docs/getting-started.md"), read(t, "../../../../docs/runbook.md")
	for _, block := range doclines.Blocks(s.document, "sh") {
		s.commands = append(s.commands, doclines.Commands(block)...)
	}
	return s
}

// newer is the image that the upgrade brings.
func (s *installer) newer() string { return s.image + "-newer" }

// refusesDefaults reports whether the cluster is too old for the chart's default identity, and checks that helm then says what to do.
func (s *installer) refusesDefaults(install string) bool {
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
	s.prints(s.next(begins), line+"\n")
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
	blocks := doclines.Blocks(s.document, "yaml")
	if len(blocks) == 0 {
		s.t.Fatal("the document has no objects")
	}
	return withShell(strings.ReplaceAll(blocks[0], driver, s.driver))
}

// running waits for a pod.
func (s *stranger) running(name string) *pod {
	s.t.Helper()
	p := &pod{s.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.pods.name}}}
	p.awaitReady()
	return p
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

// refusesUninstall wants helm to refuse a command that uninstalls, and to print why. helm reads the log of the check once, when its last lines
// may be missing, so the command is repeated until it prints all reasons.
func (s *installer) refusesUninstall(command string, reasons ...string) {
	s.t.Helper()
	eventually(s.t, podTimeout, fmt.Sprintf("%s is refused with %q", command, reasons), func(context.Context) error {
		out, err := s.run(command)
		if err == nil {
			s.t.Fatalf("%s is not refused, and prints %s", command, out)
		}
		if !containsAll(out, reasons) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// repairs repairs a release whose uninstallation was refused, by docs/uninstall.md.
func (s *installer) repairs() {
	s.t.Helper()
	if out, err := s.run("helm upgrade refvol deploy/charts/refvol --namespace refvol-system"); err == nil || !strings.Contains(out, "has no deployed releases") {
		s.t.Errorf("an upgrade after the refusal: %v, %s", err, out)
	}
	command := regexp.MustCompile(`helm rollback refvol \d+ --namespace \S+`).FindString(s.output("kubectl --namespace refvol-system logs job/refvol-uninstall-check"))
	if command == "" {
		s.t.Fatal("the log of the check has no command that repairs the release")
	}
	s.output(command)
	s.find(s.output("helm status refvol --namespace refvol-system"), "STATUS:", "deployed")
}
