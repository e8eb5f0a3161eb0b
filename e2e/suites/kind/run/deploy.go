package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// overlay is what the tests change of what a user installs, with objects of other namespaces
// allowed by their consent: the image, which no registry has, and logs that have all that they
// can, as JSON.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s/base]
components: [%[1]s/components/cross-namespace]
patches:
- target:
    kind: DaemonSet
    name: refvol-plugin
  patch: |
    - op: replace
      path: /spec/template/spec/containers/0/image
      value: %[2]s
    - op: add
      path: /spec/template/spec/containers/0/imagePullPolicy
      value: IfNotPresent
    - op: add
      path: /spec/template/spec/containers/0/args/-
      value: --v=10
    - op: add
      path: /spec/template/spec/containers/0/args/-
      value: --logging-format=json
`

// kubectl calls kubectl as the admin of one cluster.
type kubectl struct{ program, kubeconfig string }

func (k kubectl) command(args ...string) command {
	return command{args: append([]string{k.program, "--kubeconfig", k.kubeconfig}, args...)}
}

// deploy installs the plugin from the repository's manifests and waits until it
// serves on every node.
func deploy(ctx context.Context, s *settings, k kubectl, image string) error {
	dir, err := os.MkdirTemp("", "refvol-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Kustomize takes other directories by relative paths only.
	manifests, err := filepath.Rel(dir, filepath.Join(s.root, "deploy"))
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "kustomization.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, overlay, manifests, image), 0o600); err != nil {
		return err
	}
	if err := k.command("apply", "--kustomize", dir).quiet(ctx); err != nil {
		return err
	}
	return k.command("--namespace", "refvol-system", "rollout", "status",
		"daemonset/refvol-plugin", "--timeout=120s").quiet(ctx)
}
