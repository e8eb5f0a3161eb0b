package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/refvol/refvol/e2e/tools/release"
)

// upgrades is the plugin that the suite rolls from a release to the newest and back, with
// objects of other namespaces. The suite installs it from what prepare renders.
func upgrades() beside { return beside{"upgrade", []string{"cross-namespace"}, nil} }

// upgrade is a release beside which the newest is tested.
type upgrade struct {
	release.Release
	// source is the directory of its sources, image the archive of its image.
	source, image string
}

// imageName is what the archive calls the image.
func (u upgrade) imageName() string { return "localhost/refvol/refvol-plugin:" + u.Version }

// buildReleases makes the image of each release, as its own sources say, unless an earlier run
// has: a release's commit never changes.
func buildReleases(ctx context.Context, s *settings, clock stopwatch) ([]upgrade, error) {
	releases, err := release.All()
	if err != nil {
		return nil, err
	}
	var built []upgrade
	for _, r := range releases {
		dir := filepath.Join(s.cache, "e2e", "releases", r.Version+"-"+r.Commit)
		u := upgrade{Release: r, source: dir, image: filepath.Join(dir, "bin", "refvol-plugin.tar")}
		built = append(built, u)
		if _, err := os.Stat(u.image); err == nil {
			continue
		}
		clock.say("building the image of release %s", r.Version)
		if err := u.build(ctx, s); err != nil {
			return nil, fmt.Errorf("release %s: %w", r.Version, err)
		}
	}
	return built, nil
}

// build makes the release's directory, which has the image only if all of it went well.
func (u upgrade) build(ctx context.Context, s *settings) error {
	if err := os.RemoveAll(u.source); err != nil {
		return err
	}
	if err := os.MkdirAll(u.source, 0o755); err != nil {
		return err
	}
	if err := u.Unpack(ctx, s.root, u.source); err != nil {
		return err
	}
	return command{args: []string{
		"make", "--no-print-directory", "-C", u.source, "image",
		"IMAGE=" + u.imageName(), "VERSION=" + u.Version, "REVISION=" + u.Commit,
	}}.quiet(ctx)
}

// renderUpgrades writes the manifests of each release and of the newest into a new directory,
// which the caller removes: VERSION.yaml and newest.yaml.
func renderUpgrades(ctx context.Context, s *settings, k kubectl, built artifacts) (string, error) {
	dir, err := os.MkdirTemp("", "refvol-e2e-upgrade-")
	if err != nil {
		return "", err
	}
	render := func(name, root, image string) error {
		// kustomize wants a directory of its own for each.
		work := filepath.Join(dir, name)
		if err := os.Mkdir(work, 0o700); err != nil {
			return err
		}
		manifests, err := upgrades().render(ctx, root, k, work, image)
		if err != nil {
			return err
		}
		return os.WriteFile(work+".yaml", []byte(manifests), 0o600)
	}
	if err := render("newest", s.root, built.pluginName); err != nil {
		return dir, err
	}
	for _, u := range built.releases {
		if err := render(u.Version, u.source, u.imageName()); err != nil {
			return dir, fmt.Errorf("manifests of %s: %w", u.Version, err)
		}
	}
	return dir, nil
}
