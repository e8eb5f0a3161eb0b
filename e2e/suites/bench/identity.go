package main

import (
	"bytes"
	"context"
	"errors"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// identity is a value of the plugin's flag of that name.
type identity string

const (
	asPlugin identity = "plugin"
	asNode   identity = "node"
)

// identities are those that B1 and B5 compare.
func identities() []identity { return []identity{asPlugin, asNode} }

// figure returns the name of a scenario's figure: those of asPlugin have no word of their own.
func (i identity) figure(scenario, name string) string {
	if i == asPlugin {
		return scenario + "." + name
	}
	return scenario + "." + string(i) + "_" + name
}

// volume is a volume of a new pod that shows a ConfigMap, as users of the identity write it.
func (i identity) volume(object string) *harness.Volume {
	v := volume(object)
	if i == asNode {
		v.Beside = []corev1.Volume{harness.NativeConfigMap(object, object)}
		v.Attributes = map[string]string{"volume": object}
	}
	return v
}

// volumes returns count volumes, each of a new pod; volume k shows object k modulo objects.
func (i identity) volumes(count, objects int) []*harness.Volume {
	all := make([]*harness.Volume, count)
	for k := range all {
		all[k] = i.volume(objectName(k % objects))
	}
	return all
}

// newNodeAs is newNode with an identity; it returns when the plugin needs nothing more for that.
func (l *lab) newNodeAs(ctx context.Context, i identity, args ...string) (*node, error) {
	kubeconfig := l.kubeconfig
	if i == asNode {
		kubeconfig = l.asNodeKubeconfig
	}
	n, err := l.startNode(ctx, kubeconfig, "node-"+string(i), append(args, "--identity="+string(i))...)
	if err != nil {
		return n, err
	}
	return n, eventually(ctx, func() error {
		log, err := os.ReadFile(n.LogPath())
		if err == nil && !bytes.Contains(log, []byte("The API server lets the plugin work")) {
			err = errors.New("the plugin does not say what it reads as")
		}
		return err
	})
}

// storePods has the API server know the volumes' new pods, and its Node authorizer which objects they
// name.
func (n *node) storePods(ctx context.Context, all []*harness.Volume) error {
	for _, v := range all {
		if err := n.StorePod(ctx, v); err != nil {
			return err
		}
	}
	last := all[len(all)-1]
	return harness.AwaitPod(ctx, n.lab.ControlPlane, last.Namespace, last.Pod)
}
