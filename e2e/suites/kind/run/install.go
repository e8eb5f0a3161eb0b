package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kubectl calls kubectl as the admin of one cluster.
type kubectl struct{ program, kubeconfig string }

func (k kubectl) command(args ...string) command {
	return command{args: append([]string{k.program, "--kubeconfig", k.kubeconfig}, args...)}
}

// installation is a plugin of the cluster. It has a name where it runs beside the first: so one cluster has every identity.
type installation struct {
	// name begins the driver's name and ends the namespace's; the first has "".
	name       string
	components []string
	// args are added to the plugin's.
	args []string
}

// All need policies that Kubernetes has from 1.36 on.
const liveComponent, selectorComponent, restartComponent = "live", "live-node-selector", "restart"

func installations() []installation {
	return []installation{
		{"", []string{"cross-namespace"}, nil},
		{"pod-identity", []string{"pod-identity", "cross-namespace"}, []string{"--resync-interval=5s"}},
		{"node-identity", []string{"node-identity", liveComponent, selectorComponent, restartComponent}, nil},
	}
}

// deploy installs all plugins and waits until each serves on every node.
func deploy(ctx context.Context, s *settings, k kubectl, image string) error {
	dir, err := os.MkdirTemp("", "refvol-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	served, err := k.command("get", "--raw=/apis/admissionregistration.k8s.io/v1").output(ctx, os.Stderr)
	if err != nil {
		return err
	}
	for _, i := range installations() {
		if !strings.Contains(served, `"mutatingadmissionpolicies"`) {
			i.components = slices.DeleteFunc(i.components, func(name string) bool {
				return slices.Contains([]string{liveComponent, selectorComponent, restartComponent}, name)
			})
		}
		file := filepath.Join(dir, "manifests.yaml")
		if err := i.render(ctx, s.root, k, image, file); err != nil {
			return err
		}
		if err := k.command("apply", "--filename", file).quiet(ctx); err != nil {
			return err
		}
		if err := k.command("--namespace", i.namespace(), "rollout", "status", "daemonset/refvol-plugin", "--timeout=10m").quiet(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (i installation) namespace() string {
	if i.name == "" {
		return "refvol-system"
	}
	return "refvol-" + i.name
}

// render writes the manifests of the checkout at root to a file, under the plugin's own names and with logs that have
// all that they can, as JSON.
func (i installation) render(ctx context.Context, root string, k kubectl, image, file string) error {
	dir, err := os.MkdirTemp("", "refvol-e2e-kustomization-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Kustomize takes other directories by relative paths only.
	deploy, err := filepath.Rel(dir, filepath.Join(root, "deploy"))
	if err != nil {
		return err
	}
	text := "resources: [" + deploy + "/base]\ncomponents:\n"
	for _, name := range i.components {
		text += "- " + deploy + "/components/" + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	manifests, err := k.command("kustomize", dir).output(ctx, os.Stderr)
	if err != nil {
		return err
	}
	if manifests, err = i.change(manifests, image); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(manifests), 0o600)
}

// change puts in what differs from what users install.
func (i installation) change(manifests, image string) (string, error) {
	const arg = "- --http-address=:9810"
	args := strings.Join(append([]string{arg[2:], "--v=10", "--logging-format=json"}, i.args...), "\n        - ")
	replacements := [][2]string{
		{"image: ghcr.io/refvol/refvol-plugin:v0.1.0", "image: " + image + "\n        imagePullPolicy: IfNotPresent"},
		{arg, "- " + args},
	}
	if slices.Contains(i.components, restartComponent) {
		replacements = append(replacements, [2]string{"ghcr.io/refvol/refvol-notify:v0.1.0", notifyImage})
	}
	if i.name != "" {
		role := "  name: refvol-" + i.name // roles are the cluster's
		replacements = append(replacements, [][2]string{
			{"csi.refvol.dev", i.name + ".refvol.dev"},
			{"refvol-system", i.namespace()},
			{"  name: refvol-plugin\nrules:", role + "\nrules:"},
			{"  name: refvol-plugin\nroleRef:", role + "\nroleRef:"},
			{"  kind: ClusterRole\n  name: refvol-plugin", "  kind: ClusterRole\n" + role},
		}...)
	}
	for _, r := range replacements {
		if !strings.Contains(manifests, r[0]) {
			return "", fmt.Errorf("the manifests of %q have no %q any more", i.components, r[0])
		}
		manifests = strings.ReplaceAll(manifests, r[0], r[1])
	}
	return manifests, nil
}
