package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// beside is a plugin that is installed beside the first, under names of its own, so that one
// cluster has every identity.
type beside struct {
	// name begins the driver's name and ends the namespace's.
	name       string
	components []string
	// args are added to the plugin's.
	args []string
}

// Both need policies that Kubernetes has from 1.36 on.
const liveComponent, selectorComponent = "live", "live-node-selector"

func besides() []beside {
	return []beside{
		{"pod-identity", []string{"pod-identity", "cross-namespace"}, []string{"--resync-interval=5s"}},
		{"node-identity", []string{"node-identity", liveComponent, selectorComponent}, nil},
	}
}

// deploy installs the plugin from its components and waits until it serves on every node.
func (b beside) deploy(ctx context.Context, s *settings, k kubectl, image string) error {
	dir, err := os.MkdirTemp("", "refvol-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	served, err := k.command("get", "--raw=/apis/admissionregistration.k8s.io/v1").output(ctx, os.Stderr)
	if err != nil {
		return err
	}
	if !strings.Contains(served, `"mutatingadmissionpolicies"`) {
		b.components = slices.DeleteFunc(slices.Clone(b.components), func(name string) bool {
			return name == liveComponent || name == selectorComponent
		})
	}
	manifests, err := b.render(ctx, s.root, k, dir, image)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "manifests.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		return err
	}
	if err := k.command("apply", "--filename", file).quiet(ctx); err != nil {
		return err
	}
	return k.command("--namespace", "refvol-"+b.name, "rollout", "status",
		"daemonset/refvol-plugin", "--timeout=120s").quiet(ctx)
}

// render returns the manifests of the checkout at root under the plugin's own names. It uses
// dir.
func (b beside) render(ctx context.Context, root string, k kubectl, dir, image string) (string, error) {
	// Kustomize takes other directories by relative paths only.
	deploy, err := filepath.Rel(dir, filepath.Join(root, "deploy"))
	if err != nil {
		return "", err
	}
	text := "resources: [" + deploy + "/base]\ncomponents:\n"
	for _, name := range b.components {
		text += "- " + deploy + "/components/" + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return "", err
	}
	manifests, err := k.command("kustomize", dir).output(ctx, os.Stderr)
	if err != nil {
		return "", err
	}
	const arg = "- --http-address=:9810"
	args := arg
	for _, arg := range append([]string{"--v=10", "--logging-format=json"}, b.args...) {
		args += "\n        - " + arg
	}
	for _, replacement := range [][2]string{
		{"csi.refvol.dev", b.name + ".refvol.dev"},
		{"refvol-system", "refvol-" + b.name},
		{"image: ghcr.io/refvol/refvol-plugin:v0.1.0", "image: " + image + "\n        imagePullPolicy: IfNotPresent"},
		{arg, args},
		// The roles are the cluster's.
		{"  name: refvol-plugin\nrules:", "  name: refvol-" + b.name + "\nrules:"},
		{"  name: refvol-plugin\nroleRef:", "  name: refvol-" + b.name + "\nroleRef:"},
		{"  kind: ClusterRole\n  name: refvol-plugin", "  kind: ClusterRole\n  name: refvol-" + b.name},
	} {
		if !strings.Contains(manifests, replacement[0]) {
			return "", fmt.Errorf("the manifests of %q have no %q any more", b.components, replacement[0])
		}
		manifests = strings.ReplaceAll(manifests, replacement[0], replacement[1])
	}
	return manifests, nil
}
