package controlplane

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// AssetsVariable names the environment variable with the directory of an etcd and a kube-apiserver that are there already,
// as setup-envtest sets it.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// oldestAssets is the oldest kube-apiserver that all tests know how to use.
const oldestAssets = "v1.36.0"

// FromAssets returns the binaries of a directory. It fails if one is missing, or if the API server is too old.
func FromAssets(ctx context.Context, dir string) (Binaries, error) {
	found := Binaries{Etcd: filepath.Join(dir, "etcd"), APIServer: filepath.Join(dir, "kube-apiserver")}
	if _, err := exec.LookPath(found.Etcd); err != nil {
		return Binaries{}, fmt.Errorf("%s: %w", AssetsVariable, err)
	}
	text, err := exec.CommandContext(ctx, found.APIServer, "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("%s: ask %s for its version: %w", AssetsVariable, found.APIServer, err)
	}
	name := strings.TrimPrefix(strings.TrimSpace(string(text)), "Kubernetes ")
	switch is, err := version.ParseSemantic(name); {
	case err != nil:
		return Binaries{}, fmt.Errorf("%s: the version of %s: %w", AssetsVariable, found.APIServer, err)
	case is.LessThan(version.MustParseSemantic(oldestAssets)):
		return Binaries{}, fmt.Errorf("%s: %s is kube-apiserver %s, and this needs %s or newer: setup-envtest use 1.36.x", AssetsVariable, found.APIServer, name, oldestAssets)
	}
	return found, nil
}
