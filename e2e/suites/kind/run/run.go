package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/e2e/tools/gobuild"
)

// cleanupTime is how long taking away a cluster and an engine may last.
const cleanupTime = 3 * time.Minute

// run does the whole tier. What it set up is gone when it returns, also if ctx ends
// early, unless the settings say to keep it.
func run(ctx context.Context, s *settings) (err error) {
	clock := stopwatch{time.Now()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = withParent(ctx, os.Getppid)
	if err := os.MkdirAll(s.cache, 0o755); err != nil {
		return err
	}
	// What is built lies in the cache, for one run at a time.
	unlock, err := gobuild.Lock(ctx, filepath.Join(s.cache, "e2e.lock"), os.Stderr)
	if err != nil {
		return err
	}
	defer unlock()
	// The engine is the machine's, whatever the cache: the first run to end stops it.
	if os.Geteuid() == 0 {
		unlock, err := gobuild.Lock(ctx, "/run/refvol-e2e.lock", os.Stderr)
		if err != nil {
			return err
		}
		defer unlock()
	}
	// First, for here it shows whether this machine can run the tier at all.
	engine, err := startEngine(ctx, s, clock.say)
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			err = errors.Join(err, cleanUp(ctx, engine.stop))
		}
	}()
	built, err := build(ctx, s, clock)
	if err != nil {
		return err
	}
	image, err := engine.nodeImage(ctx, s)
	if err != nil {
		return err
	}
	kind, err := buildKind(ctx, s)
	if err != nil {
		return err
	}
	if built.crio, err = buildCRIO(ctx, s, image, clock); err != nil {
		return err
	}

	clock.say("creating a cluster of four nodes")
	cluster := newKindCluster(ctx, s, engine, kind)
	defer func() {
		if s.keep {
			keep = true
			fmt.Println(cluster.describe())
			return
		}
		clock.say("taking the cluster away")
		err = errors.Join(err, cleanUp(ctx, cluster.remove))
	}()
	if err := cluster.create(ctx, image); err != nil {
		if ctx.Err() == nil {
			cluster.nodeLogs(ctx)
		}
		return err
	}
	return runOn(ctx, s, clock, cluster, built)
}

// cleanUp calls remove with time of its own, also after ctx has ended.
func cleanUp(ctx context.Context, remove func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	return remove(ctx)
}

// runOn installs the plugin in the cluster and runs the suite.
func runOn(ctx context.Context, s *settings, clock stopwatch, c *kindCluster, built artifacts) (err error) {
	k := kubectl{built.kubectl, c.config}
	defer func() {
		if err != nil && ctx.Err() == nil {
			showFailure(ctx, c, k)
		}
	}()
	clock.say("loading %d images", len(built.archives))
	for _, archive := range built.archives {
		if err := c.load(ctx, archive); err != nil {
			return err
		}
	}
	if built.crio != nil {
		clock.say("switching the workers to CRI-O")
		if err := c.useCRIO(ctx, built.crio, built.archives); err != nil {
			return err
		}
	}
	clock.say("installing the plugin, with each identity")
	if err := deploy(ctx, s, k, built.pluginImage); err != nil {
		return err
	}
	upgrades, err := os.MkdirTemp("", "refvol-e2e-upgrade-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(upgrades)
	if err := renderUpgrades(ctx, s, k, built.pluginImage, built.older, upgrades); err != nil {
		return err
	}
	clock.say("running the suite")
	suite := command{
		dir: filepath.Join(s.root, "e2e", "suites", "kind", "suite"),
		env: append(c.engine.env(), "KUBECONFIG="+c.config, "REFVOL_PROBE_IMAGE="+probeImage, "REFVOL_SHELL_IMAGE="+shellImage, "REFVOL_GATE_IMAGE="+gateImage, "REFVOL_NOTIFY_IMAGE="+notifyImage,
			"REFVOL_PLUGIN_IMAGE="+built.pluginImage, "REFVOL_KUBECTL="+built.kubectl, "REFVOL_KUBECTL_REFVOL="+built.refvol, "REFVOL_HELM="+built.helm,
			"REFVOL_CHART="+filepath.Join(s.root, "deploy", "charts", "refvol"), "REFVOL_UPGRADES="+upgrades),
		// Parallel tests wait for the cluster most of the time, not for a processor, and some of them for the node that they need to
		// themselves. On a slow machine 16 at a time ran into the limits of the kubelet's own volumes.
		args: append([]string{built.suite, "-test.v", "-test.timeout=60m", "-test.parallel=10"}, s.testArgs...),
	}
	if err := suite.run(ctx); err != nil {
		return err
	}
	clock.say("all that ran have passed")
	return nil
}

// withParent returns a context that ends also when this process gets another parent:
// `go run` and make end on SIGTERM without passing it on, and the cluster must go then
// too. Its goroutine ends with ctx.
func withParent(ctx context.Context, parent func() int) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	first := parent()
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for parent() == first {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
		cancel(errors.New("the process that started this one has ended"))
	}()
	return ctx
}
