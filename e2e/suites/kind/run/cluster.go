package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// clusterName is the kind cluster's. There is one at a time, see lock in run.
const clusterName = "refvol-e2e"

//go:embed cluster.yaml
var clusterConfig string

// kindCluster is a kind cluster of this run's own.
type kindCluster struct {
	engine *engine
	kind   string
	// config is the path of a kubeconfig file that makes its user an admin.
	config string
	// sync is how often the kubelets sync; "" is what clusterConfig has.
	sync string
	// ownNetwork tells that the engine had no network of kind's before.
	ownNetwork bool
}

// newKindCluster prepares a cluster; create makes it.
func newKindCluster(ctx context.Context, s *settings, e *engine, kind string) *kindCluster {
	missing := command{args: []string{"docker", "network", "inspect", "kind"}, env: e.env()}.quiet(ctx)
	return &kindCluster{
		engine:     e,
		kind:       kind,
		config:     filepath.Join(s.cache, clusterName+".kubeconfig"),
		sync:       s.kubeletSync,
		ownNetwork: missing != nil,
	}
}

// create makes the cluster, after it took away what an earlier run may have left.
func (c *kindCluster) create(ctx context.Context, nodeImage string) error {
	if err := c.command("delete", "cluster").quiet(ctx); err != nil {
		return err
	}
	file, err := os.CreateTemp("", "refvol-e2e-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	cgroups, err := c.engine.cgroupVersion(ctx)
	if err != nil {
		return err
	}
	if _, err := file.WriteString(configuration(nodeImage, c.sync, cgroups)); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return c.command("create", "cluster", "--config", file.Name(), "--wait", "180s", "--quiet", "--image", nodeImage).run(ctx)
}

// withoutSystemd has containerd make the containers' cgroups itself.
const withoutSystemd = `- |
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
`

// configuration returns that of a cluster of an image whose kubelets sync so often, on a machine with
// cgroups of a version.
func configuration(nodeImage, sync, cgroups string) string {
	config := clusterConfig
	if sync != "" {
		config = strings.Replace(config, "syncFrequency: 20s", "syncFrequency: "+sync, 1)
	}
	if cgroups == "1" {
		// Through systemd, runc freezes each container of cgroup v1 at its start. On a busy machine that fails
		// (kubernetes/kubernetes#131087).
		config = strings.NewReplacer(
			"failCgroupV1: false\n", "failCgroupV1: false\n  cgroupDriver: cgroupfs\n",
			"containerdConfigPatches:\n", "containerdConfigPatches:\n"+withoutSystemd,
		).Replace(config)
	}
	return config + featureGates(nodeImage)
}

// featureGates returns the gates that the suite wants of the version that the image's tag names.
func featureGates(nodeImage string) string {
	_, tag, _ := strings.Cut(nodeImage, ":")
	tag, _, _ = strings.Cut(tag, "@")
	v, err := version.ParseGeneric(tag)
	switch {
	case err != nil:
		return ""
	case v.AtLeast(version.MustParseGeneric("1.37")):
		return "featureGates: {AtomicWriteVolumeUserFields: true}\n"
	case v.LessThan(version.MustParseGeneric("1.36")): // on by default from then on
		return "featureGates: {ConstrainedImpersonation: true}\n"
	}
	return ""
}

// load brings an image archive to every node.
func (c *kindCluster) load(ctx context.Context, archive string) error {
	return c.command("load", "image-archive", archive).quiet(ctx)
}

// nodeLogs writes the last lines of what runs on the nodes outside of pods.
func (c *kindCluster) nodeLogs(ctx context.Context) {
	nodes, err := c.command("get", "nodes").output(ctx, os.Stderr)
	if err != nil {
		fmt.Println("no node logs:", err)
		return
	}
	for _, node := range strings.Fields(nodes) {
		for _, unit := range []string{"kubelet", "containerd", "crio"} {
			fmt.Printf("\n=== %s of %s\n", unit, node)
			journal := command{env: c.engine.env(), args: []string{
				"docker", "exec", node, "journalctl", "--no-pager", "--output=cat", "--lines=25", "--unit=" + unit,
			}}
			if err := journal.run(ctx); err != nil {
				fmt.Println("no log:", err)
			}
		}
	}
}

// remove ends the cluster, with all that belongs to it.
func (c *kindCluster) remove(ctx context.Context) error {
	if err := c.command("delete", "cluster").quiet(ctx); err != nil {
		return err
	}
	if !c.ownNetwork {
		return nil
	}
	// kind never removes its network. It isn't there if kind didn't come that far.
	list := command{args: []string{"docker", "network", "ls", "--quiet", "--filter", "name=^kind$"}, env: c.engine.env()}
	id, err := list.output(ctx, os.Stderr)
	if err != nil || id == "" {
		return err
	}
	return command{args: []string{"docker", "network", "rm", id}, env: c.engine.env()}.quiet(ctx)
}

// describe says how to use the cluster by hand, and how to end it.
func (c *kindCluster) describe() string {
	lines := []string{"The cluster stays. To use it:", "  export KUBECONFIG=" + c.config}
	for _, variable := range c.engine.env() {
		lines = append(lines, "  export "+variable)
	}
	lines = append(lines,
		"  kubectl -n refvol-system get pods -o wide",
		"To end it, with those variables set:",
		fmt.Sprintf("  %s delete cluster --name %s", c.kind, clusterName))
	if c.engine.host != "" {
		lines = append(lines, "  "+filepath.Join(c.engine.scripts, "engine.sh")+" stop")
	}
	return strings.Join(lines, "\n")
}

// command is a call of kind about this cluster.
func (c *kindCluster) command(args ...string) command {
	// Neither `get nodes` nor `load` asks for a kubeconfig; the environment gives it
	// to those that do.
	return command{
		args: append(append([]string{c.kind}, args...), "--name", clusterName),
		env:  append(c.engine.env(), "KUBECONFIG="+c.config),
	}
}
