package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// node is a plugin on a pretended node.
type node struct {
	*harness.Plugin
	lab *lab
}

// newNode starts a plugin, which ends with the scenario. The name is unique in the lab.
func (l *lab) newNode(ctx context.Context, name string, args ...string) (*node, error) {
	return l.startNode(ctx, l.kubeconfig, name, args...)
}

// startNode is newNode with another kubeconfig.
func (l *lab) startNode(ctx context.Context, kubeconfig, name string, args ...string) (*node, error) {
	dir := filepath.Join(l.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if l.bench.noReceipts { // a scenario's own arguments come later, and win
		args = append([]string{"--open-receipts=false"}, args...)
	}
	p, err := harness.StartPlugin(ctx, harness.PluginOptions{
		Binary: l.bench.plugin, Kubeconfig: kubeconfig, Dir: dir, Pods: l.ControlPlane, Args: args,
	})
	if err != nil {
		return nil, err
	}
	l.onEnd(p.Close)
	return &node{Plugin: p, lab: l}, nil
}

// volume returns a volume of a new pod that shows one ConfigMap.
func volume(object string) *harness.Volume {
	v := harness.NewVolume(namespace, "", map[string]string{"configMap": object})
	v.Pod = "pod-" + v.UID
	return v
}

// volumes returns count volumes, each of a new pod; volume i shows object i modulo objects.
func volumes(count, objects int) []*harness.Volume {
	return asPlugin.volumes(count, objects)
}

// publishAll publishes the volumes, so many at a time.
func (n *node) publishAll(ctx context.Context, volumes []*harness.Volume, atOnce int) error {
	return inParallel(len(volumes), atOnce, func(i int) error { return n.Publish(ctx, volumes[i]) })
}

// valueFile is the file that shows the state of a volume's object.
func (n *node) valueFile(v *harness.Volume) string { return filepath.Join(n.Target(v), valueKey) }

// watched returns an error unless so many watches of ConfigMaps are open, beside those of
// the control plane itself.
func (c *cluster) watched(ctx context.Context, want int) error {
	open, err := c.OpenWatches(ctx, "configmaps")
	if err != nil {
		return err
	}
	if open-c.ownWatches != want {
		return fmt.Errorf("%d ConfigMaps are watched, want %d", open-c.ownWatches, want)
	}
	return nil
}

// mounted returns an error unless the node has so many mounts of volumes.
func (n *node) mounted(want int) error {
	mounts, err := n.VolumeMounts()
	if err != nil {
		return err
	}
	if len(mounts) != want {
		return fmt.Errorf("%d volumes are mounted, want %d", len(mounts), want)
	}
	return nil
}
