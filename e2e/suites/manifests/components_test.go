package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// combine returns the directory of a kustomization that puts a component of deploy/ on top of
// other directories there, as users do.
func combine(t *testing.T, component string, below ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(shared.dir, "kustomization-")
	if err != nil {
		t.Fatal(err)
	}
	relative := func(path string) string {
		r, err := filepath.Rel(dir, filepath.Join(shared.deploy, path))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var resources []string
	for _, path := range below {
		resources = append(resources, relative(path))
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n",
		strings.Join(resources, ", "), relative(filepath.Join("components", component)))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install applies a kustomization until the end of the test, and waits until gone says that it
// has no effect any more.
func install(t *testing.T, dir string, gone func(ctx context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := shared.kubectl(ctx, "delete", "--kustomize="+dir); err != nil {
			t.Error(err)
		}
		if err := gone(ctx); err != nil {
			t.Error(err)
		}
	})
	mustKubectl(t, "apply", "--kustomize="+dir)
}
