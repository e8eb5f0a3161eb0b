package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Kustomization writes a kustomization into dir that puts components on the base of deploy/, as users do.
func Kustomization(dir string, components ...string) error {
	repo, err := Repository()
	if err != nil {
		return err
	}
	// Kustomize takes relative paths only, and resolves links first.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	deploy, err := filepath.Rel(dir, filepath.Join(repo, "deploy"))
	if err != nil {
		return err
	}
	var paths []string
	for _, name := range components {
		paths = append(paths, filepath.Join(deploy, "components", name))
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n", filepath.Join(deploy, "base"), strings.Join(paths, ", "))
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)
}

// Rules returns what the plugin's account may do with the base and components. The first call on a machine builds
// kubectl.
func Rules(ctx context.Context, components ...string) ([]rbacv1.PolicyRule, error) {
	kubectl, err := BuildKubectl(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "refvol-kustomize-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := Kustomization(dir, components...); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, kubectl, "kustomize", dir)
	cmd.Stderr = os.Stderr
	manifests, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("render the components %q: %w", components, err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		var role rbacv1.ClusterRole
		if err := documents.Decode(&role); err != nil {
			return nil, errors.Join(errors.New("the manifests have no ClusterRole"), err)
		}
		if role.Kind == "ClusterRole" {
			return role.Rules, nil
		}
	}
}
