package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/gobuild"
)

// probeImage is the name that the suite's pods ask for.
const probeImage = "localhost/refvol/probe:e2e"

// artifacts are what every run builds.
type artifacts struct {
	// kubectl is the program, of the version that the project's node image has, refvol kubectl-refvol.
	kubectl, refvol string
	// plugin and probe are the archives of the images to load.
	plugin, probe string
	// suite is the suite's test binary.
	suite string
	// pluginName is the plugin's image as its archive calls it.
	pluginName string
}

// goFlags returns the settings of all static builds, so that go's build cache serves each
// of them.
func goFlags() []string {
	return []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false"}
}

// build builds all of them, the plugin as a release would be. It comes before the
// cluster, so that what doesn't compile fails early and compilers don't disturb the
// tests' timing.
func build(ctx context.Context, s *settings, clock stopwatch) (artifacts, error) {
	clock.say("building kubectl, the plugin, the suite and the image of its pods")
	built := artifacts{
		refvol: filepath.Join(s.root, "bin", "kubectl-refvol"),
		plugin: filepath.Join(s.root, "bin", "refvol-plugin.tar"),
		probe:  filepath.Join(s.cache, "e2e", "probe.tar"),
		suite:  filepath.Join(s.cache, "e2e", "suite.test"),
		// A name of this run's own, so that a cluster which has run an older build
		// takes the new one.
		pluginName: fmt.Sprintf("localhost/refvol/refvol-plugin:e2e-%d", time.Now().Unix()),
	}
	if err := os.MkdirAll(filepath.Dir(built.probe), 0o755); err != nil {
		return artifacts{}, err
	}
	var err error
	if built.kubectl, err = controlplane.BuildKubectl(ctx, controlplane.BuildOptions{
		ModuleDir: filepath.Join(s.root, "e2e", "node-image", "kubernetes"),
		CacheDir:  s.cache,
		Progress:  os.Stdout,
	}); err != nil {
		return artifacts{}, err
	}
	suite := command{
		dir:  filepath.Join(s.root, "e2e"),
		env:  goFlags(),
		args: []string{"go", "test", "-c", "-o", built.suite, "./suites/kind/suite"},
	}
	if err := suite.quiet(ctx); err != nil {
		return artifacts{}, err
	}
	plugin := command{args: []string{"make", "--no-print-directory", "-C", s.root, "build", "image", "IMAGE=" + built.pluginName}}
	if err := plugin.quiet(ctx); err != nil {
		return artifacts{}, err
	}
	return built, buildProbe(ctx, s, built.probe)
}

// buildProbe makes the image of the tests' pods.
func buildProbe(ctx context.Context, s *settings, archive string) error {
	program := filepath.Join(s.cache, "e2e", "probe")
	if err := gobuild.Build(ctx, gobuild.Options{
		Dir:     filepath.Join(s.root, "e2e"),
		Package: "./tools/probe",
		Out:     program,
		LDFlags: "-s -w",
	}); err != nil {
		return err
	}
	return command{
		dir: filepath.Join(s.root, "tools"),
		env: goFlags(),
		args: []string{
			"go", "run", "./image", "-binary", program, "-entrypoint", "/probe",
			"-reference", probeImage, "-output", archive,
		},
	}.quiet(ctx)
}

// buildTool builds a program of the cluster's own version.
func buildTool(ctx context.Context, s *settings, pkg, out string) error {
	return gobuild.Build(ctx, gobuild.Options{
		Dir:      filepath.Join(s.root, "e2e", "node-image", "kubernetes"),
		Package:  pkg,
		Out:      out,
		Progress: os.Stdout,
	})
}
