package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// podIdentity is what is added, as arguments, to a second plugin that reads objects with the
// pods' own tokens.
const podIdentityArgs = "- --v=10\n        - --logging-format=json\n        - --resync-interval=5s\n        - --identity=pod"

// deployPodIdentity installs a second plugin beside the first, from its overlay, under names
// of its own: one cluster then has both identities. It waits until it serves on every node.
func deployPodIdentity(ctx context.Context, s *settings, k kubectl, image string) error {
	manifests, err := k.command("kustomize", filepath.Join(s.root, "deploy", "overlays", "pod-identity-cross-namespace")).output(ctx, os.Stderr)
	if err != nil {
		return err
	}
	for _, replacement := range [][2]string{
		{"csi.refvol.dev", "pod-identity.refvol.dev"},
		{"refvol-system", "refvol-pod-identity"},
		{"image: ghcr.io/refvol/refvol-plugin:v0.1.0", "image: " + image + "\n        imagePullPolicy: IfNotPresent"},
		{"- --identity=pod", podIdentityArgs},
		// The roles are the cluster's.
		{"kind: ClusterRole\nmetadata:\n  labels:\n    app.kubernetes.io/name: refvol-plugin\n  name: refvol-plugin", "kind: ClusterRole\nmetadata:\n  name: refvol-pod-identity"},
		{"kind: ClusterRoleBinding\nmetadata:\n  labels:\n    app.kubernetes.io/name: refvol-plugin\n  name: refvol-plugin", "kind: ClusterRoleBinding\nmetadata:\n  name: refvol-pod-identity"},
		{"  kind: ClusterRole\n  name: refvol-plugin", "  kind: ClusterRole\n  name: refvol-pod-identity"},
	} {
		if !strings.Contains(manifests, replacement[0]) {
			return fmt.Errorf("the overlay of pod identity has no %q any more", replacement[0])
		}
		manifests = strings.ReplaceAll(manifests, replacement[0], replacement[1])
	}
	dir, err := os.MkdirTemp("", "refvol-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "pod-identity.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		return err
	}
	if err := k.command("apply", "--filename", file).quiet(ctx); err != nil {
		return err
	}
	return k.command("--namespace", "refvol-pod-identity", "rollout", "status",
		"daemonset/refvol-plugin", "--timeout=120s").quiet(ctx)
}
