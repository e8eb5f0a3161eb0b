package main

import (
	"io"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/pkg/command"
)

// TestServeTakesTheManifestsFlags has a renamed or mistyped flag fail here, rather
// than as a crash loop on every node.
func TestServeTakesTheManifestsFlags(t *testing.T) {
	manifest, err := os.ReadFile("../../deploy/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var daemonSet appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(manifest, &daemonSet); err != nil {
		t.Fatal(err)
	}
	args := daemonSet.Spec.Template.Spec.Containers[0].Args
	// Flags are parsed in order, so the first that is wrong comes before the help.
	if err := command.Run(t.Context(), newRootCommand(), append(args, "--help"), io.Discard, io.Discard); err != nil {
		t.Errorf("refvol-plugin %q: %v", args, err)
	}
}
