package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// namespace is where all objects of a lab are.
	namespace = "bench"
	// soon is within what time anything must happen that is waited for without being timed.
	soon = 60 * time.Second
	// objectPrefix is what the names of all ConfigMaps begin with, before their number.
	objectPrefix = "object-"
	// valueKey is the key whose value tells the states of a ConfigMap apart; paddingKey's only gives it its size.
	valueKey, paddingKey = "value", "padding"
	// before is the value of an object that has not come into its first state.
	before = "before"
)

// lab is the world of one scenario: a cluster of its own, and what is started in it.
type lab struct {
	*cluster
	bench  *bench
	dir    string
	report *measure.Report

	mu   sync.Mutex
	ends []func() error // what stop calls, the last one first; mu guards it
}

// newLab starts a world; a bare one has no cluster. The name is unique among those that live.
func (b *bench) newLab(ctx context.Context, name string, bare bool) (l *lab, err error) {
	l = &lab{bench: b, report: b.report, dir: filepath.Join(b.dir, strings.ToLower(name))}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.stop())
		}
	}()
	defer catch(&err)
	fatal(os.Mkdir(l.dir, 0o755))
	l.onEnd(func() error { return os.RemoveAll(l.dir) })
	if !bare {
		l.cluster = l.newCluster(ctx)
	}
	return l, nil
}

func (l *lab) onEnd(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends = append(l.ends, f)
}

func (l *lab) stop() (err error) {
	for _, end := range slices.Backward(l.ends) {
		err = errors.Join(err, end())
	}
	return err
}

// cluster is a control plane that knows the plugin's account, and has a namespace for objects.
type cluster struct {
	*controlplane.ControlPlane
	// client speaks protobuf, as the plugin does, over connections of its own.
	client kubernetes.Interface
	// kubeconfig is the plugin's, asNodeKubeconfig that of one with --identity=node.
	kubeconfig, asNodeKubeconfig string
	ownWatches                   int // of ConfigMaps, by the control plane itself
}

// newCluster starts a cluster, which ends with the lab.
func (l *lab) newCluster(ctx context.Context) *cluster {
	c := &cluster{kubeconfig: filepath.Join(l.dir, "plugin.kubeconfig"), asNodeKubeconfig: filepath.Join(l.dir, "asnode.kubeconfig")}
	c.ControlPlane = must(controlplane.Start(ctx, controlplane.Options{Binaries: l.bench.binaries}))
	l.onEnd(c.Stop)
	config := c.Config()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Dial = (&net.Dialer{}).DialContext
	transport := must(rest.HTTPClientFor(config))
	l.onEnd(func() error {
		transport.CloseIdleConnections()
		return nil
	})
	c.client = must(kubernetes.NewForConfigAndClient(config, transport))
	must(harness.GrantPlugin(ctx, c.ControlPlane, c.kubeconfig))
	fatal(harness.GrantAsNode(ctx, c.ControlPlane, c.asNodeKubeconfig))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	must(c.Client().CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}))
	c.ownWatches = must(c.OpenWatches(ctx, "configmaps"))
	return c
}

func (c *cluster) configMaps() typedv1.ConfigMapInterface {
	return c.client.CoreV1().ConfigMaps(namespace)
}

// watched returns an error unless so many watches of ConfigMaps are open, beside those of the control plane itself.
func (c *cluster) watched(ctx context.Context, want int) error {
	open, err := c.OpenWatches(ctx, "configmaps")
	if err == nil && open-c.ownWatches != want {
		err = fmt.Errorf("%d ConfigMaps are watched, want %d", open-c.ownWatches, want)
	}
	return err
}

func objectName(i int) string { return fmt.Sprint(objectPrefix, i) }

// configMap returns a ConfigMap of about 1 KiB in state value.
func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string]string{valueKey: value, paddingKey: strings.Repeat("x", 1<<10)},
	}
}

func (c *cluster) create(ctx context.Context, count int, value func(i int) string) error {
	return inParallel(count, 8, func(i int) error {
		_, err := c.configMaps().Create(ctx, configMap(objectName(i), value(i)), metav1.CreateOptions{})
		return err
	})
}

func (c *cluster) update(ctx context.Context, name, value string) error {
	_, err := c.configMaps().Update(ctx, configMap(name, value), metav1.UpdateOptions{})
	return err
}

// updateSteadily sends count updates with a steady interval between two. The i-th puts the object that it is of into
// a state.
func (c *cluster) updateSteadily(ctx context.Context, count int, interval time.Duration, which func(i int) (object, value string)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for i := range count {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		object, value := which(i)
		if err := c.update(ctx, object, value); err != nil {
			return err
		}
	}
	return nil
}

func always(value string) func(int) string { return func(int) string { return value } }

func scaled[T any](l *lab, short, full T) T {
	if l.bench.short {
		return short
	}
	return full
}

func eventually(ctx context.Context, f func() error) error {
	return harness.Poll(ctx, soon, 10*time.Millisecond, f)
}

func inParallel(n, atOnce int, f func(i int) error) error {
	var running errgroup.Group
	running.SetLimit(atOnce)
	for i := range n {
		running.Go(func() error { return f(i) })
	}
	return running.Wait()
}
