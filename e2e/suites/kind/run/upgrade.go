package main

import (
	"context"
	"os"
	"path/filepath"
)

// otherVersion is what the plugin of this commit is called in the image that the newest one takes turns with.
const otherVersion = "v0.0.0-other"

// otherImage is the name of that image.
const otherImage = "localhost/refvol/refvol-plugin:" + otherVersion

// upgrades is the plugin that the suite rolls from one version to another and back, with objects of other
// namespaces. The suite installs it from what renderUpgrades renders.
func upgrades() beside { return beside{"upgrade", []string{"cross-namespace"}, nil} }

// buildOther makes the image of this commit's plugin under the other version. bin/ keeps that of the newest.
func buildOther(ctx context.Context, s *settings, archive string) error {
	program := filepath.Join(s.cache, "e2e", "other", "refvol-plugin")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return err
	}
	return command{args: []string{
		"make", "--no-print-directory", "-C", s.root, "image", "IMAGE=" + otherImage, "VERSION=" + otherVersion,
		"OUT=" + program, "BINARIES=" + program, "ARCHIVE=" + archive,
	}}.quiet(ctx)
}

// renderUpgrades writes the manifests of both versions into a new directory, which the caller removes: other.yaml
// and newest.yaml.
func renderUpgrades(ctx context.Context, s *settings, k kubectl, newest string) (string, error) {
	dir, err := os.MkdirTemp("", "refvol-e2e-upgrade-")
	if err != nil {
		return "", err
	}
	for name, image := range map[string]string{"newest": newest, "other": otherImage} {
		// kustomize wants a directory of its own for each.
		work := filepath.Join(dir, name)
		if err := os.Mkdir(work, 0o700); err != nil {
			return dir, err
		}
		manifests, err := upgrades().render(ctx, s.root, k, work, image)
		if err != nil {
			return dir, err
		}
		if err := os.WriteFile(work+".yaml", []byte(manifests), 0o600); err != nil {
			return dir, err
		}
	}
	return dir, nil
}
