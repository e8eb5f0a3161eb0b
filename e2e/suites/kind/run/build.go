package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/gobuild"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// Names of images on the nodes.
const (
	// probeImage is that of the suite's pods.
	probeImage = "localhost/refvol/probe:e2e"
	// shellImage, this machine's busybox as /bin/sh, stands for those of docs/recipes.md and deploy/examples/smoke.yaml.
	shellImage = "localhost/refvol/shell:e2e"
	// gateImage, kubectl-refvol, stands for that of deploy/examples/gate.yaml.
	gateImage = "localhost/refvol/kubectl-refvol:e2e"
	// notifyImage, refvol-notify, stands for that of the component restart.
	notifyImage = "localhost/refvol/refvol-notify:e2e"
)

// artifacts are what every run builds.
type artifacts struct {
	// kubectl is the program, of the nodes' version; so are kubectl-refvol and helm, and suite is the suite's test binary.
	kubectl, refvol, helm, suite string
	// archives are those of the images to load.
	archives []string
	// pluginImage is the plugin's image.
	pluginImage string
	// older has the files of the plugin that the upgrade test starts from.
	older string
	// crio is nil if the nodes keep containerd.
	crio *crio
}

// build builds all of them, the plugin as a release would be. It comes before the
// cluster, so that what doesn't compile fails early and compilers don't disturb the
// tests' timing.
func build(ctx context.Context, s *settings, clock stopwatch) (artifacts, error) {
	clock.say("building kubectl, the plugin, the suite and the image of its pods")
	work := filepath.Join(s.cache, "e2e")
	programs := filepath.Join(work, "programs")
	for _, err := range []error{os.RemoveAll(programs), os.MkdirAll(programs, 0o755), os.MkdirAll(filepath.Join(work, "other"), 0o755)} {
		if err != nil {
			return artifacts{}, err
		}
	}
	built := artifacts{
		refvol: filepath.Join(s.root, "bin", "kubectl-refvol"),
		suite:  filepath.Join(work, "suite.test"),
		// A name of this run's own, so that a cluster which has run an older build takes the new one.
		pluginImage: fmt.Sprintf("localhost/refvol/refvol-plugin:e2e-%d", time.Now().Unix()),
	}
	var err error
	if built.kubectl, err = controlplane.BuildKubectl(ctx, controlplane.BuildOptions{
		ModuleDir: s.kubernetesModule(), ModFile: s.modFile(), CacheDir: s.cache, Progress: os.Stdout,
	}); err != nil {
		return artifacts{}, err
	}
	if built.helm, err = harness.BuildHelm(ctx, programs, os.Stdout); err != nil {
		return artifacts{}, err
	}
	archive := func(name string) string { return filepath.Join(work, name+".tar") }
	built.archives = []string{
		filepath.Join(s.root, "bin", "refvol-plugin.tar"), filepath.Join(s.root, "bin", "kubectl-refvol.tar"),
		filepath.Join(s.root, "bin", "refvol-notify.tar"), archive("other"), archive("probe"), archive("shell"),
	}
	if built.older, err = checkOutOlder(ctx, s, clock, filepath.Join(work, "older")); err != nil {
		return artifacts{}, err
	}
	if err := buildOlder(ctx, built.older, filepath.Join(work, "other"), archive("other")); err != nil {
		return artifacts{}, err
	}
	probe := filepath.Join(work, "probe")
	e2e, tools, flags := filepath.Join(s.root, "e2e"), filepath.Join(s.root, "tools"), goFlags()
	for _, c := range []command{
		{dir: e2e, env: flags, args: []string{"go", "test", "-c", "-o", built.suite, "./suites/kind/suite"}},
		makeOf(s, "build", "image", "IMAGE="+built.pluginImage),
		makeOf(s, "pack", "PROGRAM=kubectl-refvol", "IMAGE="+gateImage),
		makeOf(s, "image", "PROGRAM=refvol-notify", "IMAGE="+notifyImage),
		{dir: e2e, env: flags, args: []string{"go", "build", "-ldflags", "-s -w", "-o", probe, "./tools/probe"}},
		imageOf(tools, probe, "/probe", probeImage, archive("probe")),
		{env: []string{"REFVOL_CACHE=" + s.cache}, args: []string{filepath.Join(e2e, "node-image", "deps.sh"), "suite"}},
	} {
		if err := c.quiet(ctx); err != nil {
			return artifacts{}, err
		}
	}
	busybox, err := exec.LookPath("busybox") // deps.sh has seen to it
	if err != nil {
		return artifacts{}, err
	}
	return built, imageOf(tools, busybox, "/bin/sh", shellImage, archive("shell")).quiet(ctx)
}

// goFlags returns the settings of all static builds, so that go's build cache serves each
// of them.
func goFlags() []string { return []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false"} }

func makeOf(s *settings, args ...string) command {
	return command{args: append([]string{"make", "--no-print-directory", "-C", s.root}, args...)}
}

// imageOf makes the image of one static program.
func imageOf(tools, program, entrypoint, name, archive string) command {
	return command{dir: tools, env: goFlags(), args: []string{
		"go", "run", "./image", "-binary", program, "-entrypoint", entrypoint, "-reference", name, "-output", archive,
	}}
}

// buildKind builds kind and returns the path of the program.
func buildKind(ctx context.Context, s *settings) (string, error) {
	kind := filepath.Join(s.cache, "e2e", "kind")
	return kind, gobuild.Build(ctx, gobuild.Options{Dir: s.kubernetesModule(), Package: "sigs.k8s.io/kind", Out: kind, Progress: os.Stdout})
}
