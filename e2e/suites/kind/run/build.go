package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/gobuild"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// probeImage is the name that the suite's pods ask for.
const probeImage = "localhost/refvol/probe:e2e"

// shellImage is the image of docs/recipes.md and deploy/examples/smoke.yaml in the suite: this machine's busybox, as /bin/sh.
const shellImage = "localhost/refvol/shell:e2e"

// gateImage is the image of kubectl-refvol, in the place of deploy/examples/gate.yaml's.
const gateImage = "localhost/refvol/kubectl-refvol:e2e"

// artifacts are what every run builds.
type artifacts struct {
	// kubectl is the program, of the version that the project's node image has, refvol kubectl-refvol.
	kubectl, refvol string
	// suite is the suite's test binary.
	suite string
	// archives are those of the images to load.
	archives []string
	// pluginName and probeName are images. So is shellName, or "": pods take the documents' own images then. So is gateName,
	// that of kubectl-refvol, or "": the nodes have none.
	pluginName, probeName, shellName, gateName string
	// helm is the program.
	helm string
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
		refvol:     filepath.Join(s.root, "bin", "kubectl-refvol"),
		suite:      filepath.Join(s.cache, "e2e", "suite.test"),
		pluginName: s.image,
		probeName:  s.probeImage,
	}
	if err := os.MkdirAll(filepath.Dir(built.suite), 0o755); err != nil {
		return artifacts{}, err
	}
	var err error
	if built.kubectl, err = controlplane.BuildKubectl(ctx, controlplane.BuildOptions{
		ModuleDir: s.kubernetesModule(),
		ModFile:   s.modFile(),
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
	if s.image != "" {
		return built, command{args: []string{"make", "--no-print-directory", "-C", s.root, "build-program", "PROGRAM=kubectl-refvol"}}.quiet(ctx)
	}
	err = built.images(ctx, s)
	return built, err
}

// images builds the images, and what only tests need that have the nodes.
func (a *artifacts) images(ctx context.Context, s *settings) error {
	// A name of this run's own, so that a cluster which has run an older build takes the new one.
	a.pluginName = fmt.Sprintf("localhost/refvol/refvol-plugin:e2e-%d", time.Now().Unix())
	plugin := command{args: []string{"make", "--no-print-directory", "-C", s.root, "build", "image", "IMAGE=" + a.pluginName}}
	if err := plugin.quiet(ctx); err != nil {
		return err
	}
	a.gateName = gateImage
	gate := command{args: []string{"make", "--no-print-directory", "-C", s.root, "pack", "PROGRAM=kubectl-refvol", "IMAGE=" + gateImage}}
	if err := gate.quiet(ctx); err != nil {
		return err
	}
	a.probeName, a.shellName = probeImage, shellImage
	archive := func(name string) string { return filepath.Join(s.cache, "e2e", name+".tar") }
	probe, shell, other := archive("probe"), archive("shell"), archive("other")
	if err := errors.Join(buildOther(ctx, s, other), buildProbe(ctx, s, probe), buildShell(ctx, s, shell)); err != nil {
		return err
	}
	a.archives = []string{filepath.Join(s.root, "bin", "refvol-plugin.tar"), filepath.Join(s.root, "bin", "kubectl-refvol.tar"), probe, shell, other}
	programs := filepath.Join(s.cache, "e2e", "programs")
	if err := errors.Join(os.RemoveAll(programs), os.Mkdir(programs, 0o755)); err != nil {
		return err
	}
	var err error
	a.helm, err = harness.BuildHelm(ctx, programs, os.Stdout)
	return err
}

// buildShell makes the image of the recipes' pods.
func buildShell(ctx context.Context, s *settings, archive string) error {
	deps := command{
		args: []string{filepath.Join(s.root, "e2e", "node-image", "deps.sh"), "suite"},
		env:  []string{"REFVOL_CACHE=" + s.cache},
	}
	if err := deps.quiet(ctx); err != nil {
		return err
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	return makeImage(ctx, s, busybox, "/bin/sh", shellImage, archive)
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
	return makeImage(ctx, s, program, "/probe", probeImage, archive)
}

// makeImage makes the image of one static program.
func makeImage(ctx context.Context, s *settings, program, entrypoint, name, archive string) error {
	return command{
		dir: filepath.Join(s.root, "tools"),
		env: goFlags(),
		args: []string{
			"go", "run", "./image", "-binary", program, "-entrypoint", entrypoint,
			"-reference", name, "-output", archive,
		},
	}.quiet(ctx)
}

// buildTool builds a program of the newest version's module.
func buildTool(ctx context.Context, s *settings, pkg, out string) error {
	return gobuild.Build(ctx, gobuild.Options{
		Dir:      s.kubernetesModule(),
		Package:  pkg,
		Out:      out,
		Progress: os.Stdout,
	})
}
