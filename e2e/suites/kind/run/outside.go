package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// outsideCluster is a cluster that is there already, and stays.
type outsideCluster struct {
	config string
	loader string
}

func (c *outsideCluster) kubeconfig() string { return c.config }

// Its nodes are in the engine that the runner's own environment names, if in any.
func (c *outsideCluster) env() []string { return nil }

func (c *outsideCluster) load(ctx context.Context, archive string) error {
	// The loader may have arguments of its own, so a shell splits it.
	return command{args: []string{"sh", "-c", c.loader + ` "$1"`, "sh", archive}}.quiet(ctx)
}

func (c *outsideCluster) nodeLogs(context.Context) {}

// runsProbe checks that the cluster runs pods of an image, for without them each test would wait in
// vain. The plugin's namespace must be there.
func runsProbe(ctx context.Context, k kubectl, image string) (err error) {
	pod := func(args ...string) command {
		return k.command(append([]string{"--namespace", "refvol-system"}, args...)...)
	}
	remove := func(ctx context.Context) error {
		return pod("delete", "pod", "refvol-e2e-probe", "--ignore-not-found", "--grace-period=1").quiet(ctx)
	}
	if err := remove(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp(ctx, remove)) }()
	if err := pod("run", "refvol-e2e-probe", "--image", image, "--restart=Never", "--", "sleep").quiet(ctx); err != nil {
		return err
	}
	if err := pod("wait", "pod/refvol-e2e-probe", "--for=condition=Ready", "--timeout=60s").quiet(ctx); err != nil {
		return fmt.Errorf("the cluster does not run PROBE_IMAGE=%s; make probe-image packs it, then push it there (e2e/README.md): %w", image, err)
	}
	return nil
}

// leavingOut runs the suite, and lists which tests it left out, and why.
func leavingOut(ctx context.Context, suite command, say func(string, ...any)) error {
	file, err := os.CreateTemp("", "refvol-e2e-left-out-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if err := file.Close(); err != nil {
		return err
	}
	suite.env = append(suite.env, "REFVOL_LEFT_OUT="+file.Name())
	ran := suite.run(ctx)
	text, err := os.ReadFile(file.Name())
	tests, list := slices.Sorted(strings.Lines(string(text))), ""
	for _, test := range tests {
		list += "\n  " + strings.TrimSpace(test)
	}
	say("tests left out: %d%s", len(tests), list)
	return errors.Join(ran, err)
}
