package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// namespace is where all objects of a lab are.
const namespace = "bench"

// soon is within what time anything must happen that is waited for without being timed.
const soon = 60 * time.Second

// lab is the world of one scenario: a cluster of its own (in the short form all scenarios use
// one, in turn) and what is started in it. Its methods but stop are safe for concurrent
// use.
type lab struct {
	*cluster
	bench *bench
	// client speaks protobuf, as the plugin does.
	client kubernetes.Interface
	dir    string
	report *measure.Report
	out    io.Writer

	mu sync.Mutex
	// ends are what stop calls, the last one first. Guarded by mu.
	ends []func() error
}

// newLab starts the world of a scenario.
func (b *bench) newLab(ctx context.Context, s scenario) (_ *lab, err error) {
	l := &lab{bench: b, report: b.report, out: b.out, dir: filepath.Join(b.dir, strings.ToLower(s.id))}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return nil, err
	}
	l.onEnd(func() error { return os.RemoveAll(l.dir) })
	if s.bare {
		return l, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.stop())
		}
	}()
	if b.short {
		if b.shared == nil {
			if b.shared, err = b.newCluster(ctx, b.dir); err != nil {
				return nil, err
			}
		}
		l.cluster = b.shared
		l.onEnd(func() error { return l.cluster.empty(context.WithoutCancel(ctx)) })
	} else {
		if l.cluster, err = b.newCluster(ctx, l.dir); err != nil {
			return nil, err
		}
		l.onEnd(l.Stop)
	}
	return l, l.connect()
}

// cluster is a control plane that knows the plugin's account, and has a namespace for objects.
type cluster struct {
	*controlplane.ControlPlane
	// kubeconfig is the plugin's, asNodeKubeconfig that of one with --identity=node.
	kubeconfig, asNodeKubeconfig string
	// ownWatches is how many watches of ConfigMaps the control plane has for itself.
	ownWatches int
}

// newCluster starts a cluster, which keeps the kubeconfig in dir. The caller stops it.
func (b *bench) newCluster(ctx context.Context, dir string) (_ *cluster, err error) {
	c := &cluster{kubeconfig: filepath.Join(dir, "plugin.kubeconfig"), asNodeKubeconfig: filepath.Join(dir, "asnode.kubeconfig")}
	if c.ControlPlane, err = controlplane.Start(ctx, controlplane.Options{Binaries: b.binaries}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if _, err := harness.GrantPlugin(ctx, c.ControlPlane, c.kubeconfig); err != nil {
		return nil, err
	}
	if err := harness.GrantAsNode(ctx, c.ControlPlane, c.asNodeKubeconfig); err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := c.Client().CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if c.ownWatches, err = c.OpenWatches(ctx, "configmaps"); err != nil {
		return nil, err
	}
	return c, nil
}

// empty deletes all objects and pods, and waits until nobody watches any object.
func (c *cluster) empty(ctx context.Context) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := errors.Join(
		c.Client().CoreV1().ConfigMaps(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}),
		c.Client().CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}),
	); err != nil {
		return err
	}
	return eventually(ctx, func() error { return c.watched(ctx, 0) })
}

// connect makes the lab's client.
func (l *lab) connect() error {
	config := l.Config()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// A dialer of its own keeps the connections from being shared with other clients.
	config.Dial = (&net.Dialer{}).DialContext
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	l.client, err = kubernetes.NewForConfigAndClient(config, transport)
	l.onEnd(func() error {
		transport.CloseIdleConnections()
		return nil
	})
	return err
}

// onEnd has f called when the scenario ends.
func (l *lab) onEnd(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends = append(l.ends, f)
}

// stop ends all that was started.
func (l *lab) stop() error {
	l.mu.Lock()
	ends := slices.Clone(l.ends)
	l.ends = nil
	l.mu.Unlock()
	var errs []error
	for _, end := range slices.Backward(ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// scaled returns the size of a scenario in its short form or its full one.
func scaled[T any](l *lab, short, full T) T {
	if l.bench.short {
		return short
	}
	return full
}

// eventually calls f until it returns nil, and returns its last error if that takes too
// long.
func eventually(ctx context.Context, f func() error) error {
	return harness.Poll(ctx, soon, 10*time.Millisecond, f)
}

// inParallel calls f for each number below n, so many at a time, and joins the errors.
func inParallel(n, atOnce int, f func(i int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// objectPrefix is what the names of all ConfigMaps begin with, before their number.
const objectPrefix = "object-"

// objectName is the name of the i-th ConfigMap.
func objectName(i int) string { return fmt.Sprint(objectPrefix, i) }

// valueKey is the key whose value tells the states of a ConfigMap apart; paddingKey's only
// gives it its size.
const (
	valueKey   = "value"
	paddingKey = "padding"
)

// objectSize is about what each object takes, in bytes.
const objectSize = 1 << 10

// configMap returns a ConfigMap in state value.
func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string]string{valueKey: value, paddingKey: strings.Repeat("x", objectSize)},
	}
}

// create creates count ConfigMaps, of which the i-th is in state value(i).
func (l *lab) create(ctx context.Context, count int, value func(i int) string) error {
	return inParallel(count, 8, func(i int) error {
		_, err := l.client.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(objectName(i), value(i)), metav1.CreateOptions{})
		return err
	})
}

// update puts a ConfigMap into state value.
func (l *lab) update(ctx context.Context, name, value string) error {
	_, err := l.client.CoreV1().ConfigMaps(namespace).Update(ctx, configMap(name, value), metav1.UpdateOptions{})
	return err
}

// updateSteadily sends count updates with a steady interval between two, and returns when each was
// sent. The i-th puts the object that it is of into a state.
func (l *lab) updateSteadily(ctx context.Context, count int, interval time.Duration, which func(i int) (object, value string)) (sent []time.Time, err error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for i := range count {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
		object, value := which(i)
		sent = append(sent, time.Now())
		if err := l.update(ctx, object, value); err != nil {
			return nil, err
		}
	}
	return sent, nil
}

// always returns a function of a constant.
func always(value string) func(int) string { return func(int) string { return value } }
