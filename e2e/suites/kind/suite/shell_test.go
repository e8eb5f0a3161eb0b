package suite

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

// shell runs commands of documents, with the names of the test in the place of theirs.
type shell struct {
	// pods is the namespace of commands that name none.
	pods  *namespace
	names *strings.Replacer
	env   []string
}

// newShell returns a shell that replaces names, which are pairs of an old and a new one.
func newShell(pods *namespace, names ...string) *shell {
	pods.t.Helper()
	dir := pods.t.TempDir()
	s := &shell{pods: pods, names: strings.NewReplacer(names...)}
	s.env = append(os.Environ(), "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+s.kubeconfig(dir))
	for name, program := range map[string]string{"kubectl": "REFVOL_KUBECTL", "kubectl-refvol": "REFVOL_KUBECTL_REFVOL", "helm": "REFVOL_HELM"} {
		if err := os.Symlink(os.Getenv(program), filepath.Join(dir, name)); err != nil {
			pods.t.Fatalf("%s must name %s; make e2e does: %v", program, name, err)
		}
	}
	return s
}

// kubeconfig returns a file whose namespace is that of the pods.
func (s *shell) kubeconfig(dir string) string {
	s.pods.t.Helper()
	config := must.Get(clientcmd.LoadFromFile(os.Getenv("KUBECONFIG")))(s.pods.t)
	config.Contexts[config.CurrentContext].Namespace = s.pods.name
	file := filepath.Join(dir, "kubeconfig")
	must.Do(s.pods.t, clientcmd.WriteToFile(*config, file))
	return file
}

// apply creates the objects of a text in the namespace of the pods, or in their own one, and returns the file that has it.
func (s *shell) apply(text string) (file string) {
	s.pods.t.Helper()
	file = filepath.Join(s.pods.t.TempDir(), "objects.yaml")
	must.Do(s.pods.t, os.WriteFile(file, []byte(text), 0o600))
	s.output("kubectl create --filename=- <'" + file + "'") // kubectl would take a comma of the path for the end of a name
	return file
}

// run has a shell run a command, also while the test cleans up, and returns what it printed; its warnings only with an error.
func (s *shell) run(command string) (string, error) {
	cmd := exec.CommandContext(context.WithoutCancel(s.pods.t.Context()), "sh", "-c", s.names.Replace(command))
	cmd.Env = s.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if strings.HasPrefix(command, "kubectl refvol ") {
		if err := leak.Check(command, stdout.String()+stderr.String()); err != nil {
			s.pods.t.Error(err)
		}
	}
	if err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

func (s *shell) output(command string) string {
	s.pods.t.Helper()
	out, err := s.run(command)
	if err != nil {
		s.pods.t.Fatalf("%s: %v: %s", command, err, out)
	}
	return out
}

// prints runs a command until it prints just a text.
func (s *shell) prints(command, text string) {
	s.pods.t.Helper()
	eventually(s.pods.t, podTimeout, fmt.Sprintf("%s prints %q", command, text), func(context.Context) error {
		out, err := s.run(command)
		if err == nil && out == text {
			return nil
		}
		return fmt.Errorf("it prints %q, error %v", out, err)
	})
}

// fails runs a command until it fails with a line that has all words: the plugin hears of a change after the command that made it.
func (s *shell) fails(command string, words ...string) {
	s.pods.t.Helper()
	eventually(s.pods.t, podTimeout, fmt.Sprintf("%s says %q", command, words), func(context.Context) error {
		out, err := s.run(command)
		if err == nil || len(linesWith(out, words...)) == 0 {
			return fmt.Errorf("it ends with %v and says\n%s", err, out)
		}
		return nil
	})
}

// find wants a line of a text that has all words.
func (s *shell) find(text string, words ...string) {
	s.pods.t.Helper()
	if len(linesWith(text, words...)) == 0 {
		s.pods.t.Errorf("no line has %q in\n%s", words, text)
	}
}

// kubectlRefvol runs the program that REFVOL_KUBECTL_REFVOL names.
func kubectlRefvol(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return harness.Run(t, os.Getenv("REFVOL_KUBECTL_REFVOL"), args...)
}
