package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

const (
	pluginNamespace = "refvol-system"
	pluginAccount   = "refvol-plugin"
)

// suite is what all tests share: one API server, which each test leaves as it found it.
type suite struct {
	*controlplane.ControlPlane
	// deploy is the directory of the manifests.
	deploy string
	// dir is for files of the run.
	dir string
	// program is kubectl, refvol is kubectl-refvol.
	program, refvol string
}

// shared is set by TestMain before any test runs, and constant from then on.
var shared *suite

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(ctx context.Context) (func() error, error) {
		s, err := newSuite(ctx)
		if err != nil {
			return nil, errors.Join(err, s.stop())
		}
		shared = s
		return s.stop, nil
	}))
}

func newSuite(ctx context.Context) (*suite, error) {
	s := &suite{}
	repo, err := harness.Repository()
	if err != nil {
		return s, err
	}
	s.deploy = filepath.Join(repo, "deploy")
	if s.dir, err = os.MkdirTemp("", "refvol-mf-"); err != nil {
		return s, err
	}
	if s.program, err = harness.BuildKubectl(ctx, os.Stderr); err != nil {
		return s, err
	}
	if s.refvol, err = harness.BuildKubectlRefvol(ctx, s.dir, os.Stderr); err != nil {
		return s, err
	}
	if s.ControlPlane, err = harness.StartControlPlane(ctx, os.Stderr); err != nil {
		return s, err
	}
	return s, s.prepare(ctx)
}

// prepare makes what a cluster's controllers would make: service accounts.
func (s *suite) prepare(ctx context.Context) error {
	for _, args := range [][]string{
		{"apply", "--filename=" + filepath.Join(s.deploy, "base", "namespace.yaml")},
		{"apply", "--filename=" + filepath.Join(s.deploy, "base", "serviceaccount.yaml")},
		{"create", "serviceaccount", "default", "--namespace=default"},
	} {
		if _, err := s.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) stop() error {
	var err error
	if s.ControlPlane != nil {
		err = s.Stop()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *suite) kubectl(ctx context.Context, args ...string) (string, error) {
	return s.kubectlWith(ctx, nil, args...)
}

// kubectlWith runs kubectl as the cluster's admin and returns what it printed. The error
// has what it wrote to stderr.
func (s *suite) kubectlWith(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.program, append([]string{"--kubeconfig=" + s.Kubeconfig()}, args...)...)
	// What it finds out about the API server it keeps in the user's home directory.
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "KUBECACHEDIR="+filepath.Join(s.dir, "cache"))
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %q: %w: %s", args, err, stderr.Bytes())
	}
	return stdout.String(), nil
}

func mustKubectl(t *testing.T, args ...string) string {
	t.Helper()
	return must.Get(shared.kubectl(t.Context(), args...))(t)
}

// dryRun has the API server judge an object, and keep nothing.
func dryRun() metav1.CreateOptions {
	return metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
}

// wantRefusal wants an error with all of the texts; none if there is no text.
func wantRefusal(t *testing.T, err error, texts ...string) {
	t.Helper()
	if len(texts) == 0 && err != nil {
		t.Errorf("refused: %v", err)
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want a refusal with %q", err, text)
		}
	}
}
