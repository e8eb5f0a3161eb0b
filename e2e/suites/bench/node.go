package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// identity is a value of the plugin's flag of that name.
type identity string

const (
	asPlugin identity = "plugin"
	asNode   identity = "node"
)

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
	v := harness.NewVolume(namespace, "", map[string]string{"configMap": object})
	v.Pod = "pod-" + v.UID
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

// podsOfNode is how many pods a kubelet runs by default.
const podsOfNode = 110

// inPods puts the volumes of a node into as many pods as it runs.
func inPods(all []*harness.Volume) []*harness.Volume {
	for i, v := range all {
		first := all[i%podsOfNode]
		v.Pod, v.UID, v.Name = first.Pod, first.UID, fmt.Sprint("volume-", i/podsOfNode)
	}
	return all
}

type node struct {
	*harness.Plugin
	lab *lab
}

// newNode starts a plugin, which ends with the scenario. The name is unique in the lab. It returns when the plugin
// needs nothing more for its identity.
func (l *lab) newNode(ctx context.Context, i identity, name string, args ...string) *node {
	dir := filepath.Join(l.dir, name)
	fatal(os.Mkdir(dir, 0o755))
	kubeconfig := l.kubeconfig
	if i == asNode {
		kubeconfig = l.asNodeKubeconfig
	}
	args = append([]string{"--identity=" + string(i), "--open-receipts=true"}, args...) // the last one of a flag wins
	p := must(harness.StartPlugin(ctx, harness.PluginOptions{
		Binary: l.bench.plugin, Kubeconfig: kubeconfig, Dir: dir, Pods: l.ControlPlane, Args: args,
	}))
	l.onEnd(p.Close)
	fatal(eventually(ctx, func() error {
		log, err := os.ReadFile(p.LogPath())
		if err == nil && !bytes.Contains(log, []byte("The API server lets the plugin work")) {
			err = errors.New("the plugin does not say what it reads as")
		}
		return err
	}))
	return &node{Plugin: p, lab: l}
}

// subject returns the plugin's process. It must have a --profiling-address.
func (n *node) subject() *subject {
	address := must(n.ProfilingAddress())
	if address == "" {
		fatal(fmt.Errorf("the plugin serves no profiles\n%s", n.LogTail()))
	}
	return &subject{n.PID(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, address, n.Close}
}

// storePods has the API server know the volumes' new pods, and its Node authorizer which objects they name.
func (n *node) storePods(ctx context.Context, all ...*harness.Volume) {
	for _, v := range all {
		fatal(n.StorePod(ctx, v))
	}
	last := all[len(all)-1]
	fatal(harness.AwaitPod(ctx, n.lab.ControlPlane, last.Namespace, last.Pod))
}

func (n *node) publishAll(ctx context.Context, volumes []*harness.Volume, atOnce int) error {
	err := inParallel(len(volumes), atOnce, func(i int) error { return n.Publish(ctx, volumes[i]) })
	return errors.Join(err, n.mounted(len(volumes)))
}

func (n *node) mounted(want int) error {
	mounts, err := n.VolumeMounts()
	if err == nil && len(mounts) != want {
		err = fmt.Errorf("%d volumes are mounted, want %d", len(mounts), want)
	}
	return err
}

// valueFiles are the files that show the states of volumes' objects.
func (n *node) valueFiles(volumes []*harness.Volume) []string {
	files := make([]string, len(volumes))
	for i, v := range volumes {
		files[i] = filepath.Join(n.Target(v), valueKey)
	}
	return files
}

func (n *node) show(volumes []*harness.Volume, value func(i int) string) error {
	for i, file := range n.valueFiles(volumes) {
		content, err := os.ReadFile(file)
		if err == nil && string(content) != value(i) {
			err = fmt.Errorf("it shows %q, want %q", content, value(i))
		}
		if err != nil {
			return fmt.Errorf("volume %d: %w", i, err)
		}
	}
	return nil
}
