package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// upgradedFrom is the commit that the suite upgrades from and rolls back to: the last one before the format of what the plugin
	// keeps on a node was frozen. A release takes its place once there is one.
	upgradedFrom = "12c071036f4b61892874ad61be1958730480ca0d"
	// The older plugin's image has a version of its own, so that a log shows which one wrote it.
	otherVersion = "v0.0.0-other"
	otherImage   = "localhost/refvol/refvol-plugin:" + otherVersion
)

// checkOutOlder writes the files of upgradedFrom to dir, and returns dir. A checkout without history, as a shallow clone or an archive,
// lacks that commit: then it says so and returns the root of this checkout, so that the suite rolls between two names of the same code.
func checkOutOlder(ctx context.Context, s *settings, clock stopwatch, dir string) (string, error) {
	git := func(args ...string) command { return command{args: append([]string{"git", "-C", s.root}, args...)} }
	if err := git("cat-file", "-e", upgradedFrom+"^{commit}").quiet(ctx); err != nil {
		if shallow, _ := git("rev-parse", "--is-shallow-repository").output(ctx, os.Stderr); shallow == "false" {
			return "", fmt.Errorf("the commit that the upgrade test starts from: %w", err)
		}
		clock.say("SKIPPED: an upgrade from commit %.8s, which this checkout lacks (git fetch --unshallow): %v", upgradedFrom, err)
		return s.root, nil
	}
	clock.say("checking out %.8s, which the upgrade test starts from", upgradedFrom)
	for _, err := range []error{os.RemoveAll(dir), os.MkdirAll(dir, 0o755)} {
		if err != nil {
			return "", err
		}
	}
	archive := filepath.Join(dir, "older.tar")
	if err := git("archive", "--output", archive, upgradedFrom, "Makefile", "go.mod", "go.sum", "cmd", "pkg", "internal", "tools", "deploy").quiet(ctx); err != nil {
		return "", err
	}
	return dir, command{args: []string{"tar", "--extract", "--file", archive, "--directory", dir}}.quiet(ctx)
}

// buildOlder builds the image of the older plugin from the files at root.
func buildOlder(ctx context.Context, root, dir, archive string) error {
	program := filepath.Join(dir, "refvol-plugin")
	return command{args: []string{
		"make", "--no-print-directory", "-C", root, "image",
		"IMAGE=" + otherImage, "VERSION=" + otherVersion, "OUT=" + program, "BINARIES=" + program, "ARCHIVE=" + archive,
	}}.quiet(ctx)
}

// renderUpgrades writes into dir the manifests of the plugin that the suite installs and rolls from one version to
// another and back, with objects of other namespaces: newest.yaml, and other.yaml from the files at older.
func renderUpgrades(ctx context.Context, s *settings, k kubectl, newest, older, dir string) error {
	upgrades := installation{"upgrade", []string{"cross-namespace"}, nil}
	if err := upgrades.render(ctx, s.root, k, newest, filepath.Join(dir, "newest.yaml")); err != nil {
		return err
	}
	return upgrades.render(ctx, older, k, otherImage, filepath.Join(dir, "other.yaml"))
}
