package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// podWatch has the pods of one namespace, by a watch. A goroutine of client-go keeps it current, and others may ask it for the pods.
type podWatch struct {
	cache.Store

	// changed has an entry after something has changed. mu protects the rest.
	changed chan struct{}
	mu      sync.Mutex
	// isListed means that Store has all pods. isWatched means that a watch has listed them. err is the error of the last request, or nil after a
	// watch has begun.
	isListed, isWatched bool
	err                 error
}

// podRequests are those about the pods of a namespace, as a client-go client sends them.
type podRequests interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error)
}

func newPodWatch() *podWatch {
	return &podWatch{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), changed: make(chan struct{}, 1)}
}

// watchPods returns a function that returns the pods of a namespace. At its first call it begins a watch, which ends with ctx. While the watch
// fails, the function returns its error, because the pods may have changed. It must not be called concurrently.
func (c *cluster) watchPods(ctx context.Context) (func(context.Context, string) ([]corev1.Pod, error), error) {
	httpClient, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("make the connections for watches: %w", err)
	}
	client, err := kubernetes.NewForConfigAndClient(c.config, &http.Client{Transport: httpClient.Transport}) // a watch has no timeout
	if err != nil {
		return nil, fmt.Errorf("make a client for watches: %w", err)
	}
	watches := map[string]*podWatch{}
	return func(asking context.Context, namespace string) ([]corev1.Pod, error) {
		w := watches[namespace]
		if w == nil {
			w = newPodWatch()
			watches[namespace] = w
			go w.follow(ctx, client.CoreV1().Pods(namespace))
		}
		pods, err := w.pods(asking)
		if err != nil {
			return nil, fmt.Errorf("watch the pods of namespace %s: %w", namespace, err)
		}
		return pods, nil
	}, nil
}

// follow watches until ctx ends.
func (w *podWatch) follow(ctx context.Context, requests podRequests) {
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			pods, err := requests.List(ctx, opts)
			w.begin(false, err)
			return pods, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			events, err := requests.Watch(ctx, opts)
			if err == nil && opts.SendInitialEvents != nil {
				w.begin(true, nil)
			} else {
				w.note(err)
			}
			return events, err
		},
	}, requests)
	ctx = klog.NewContext(ctx, klog.Logger{}) // the caller of pods gets each error
	cache.NewReflectorWithOptions(source, &corev1.Pod{}, w, cache.ReflectorOptions{}).RunWithContext(ctx)
}

// begin notes that a list of all pods begins, by a watch or by a list. If the list succeeds, that does not mean that a watch does.
func (w *podWatch) begin(byWatch bool, err error) {
	w.mu.Lock()
	w.isListed, w.isWatched = false, byWatch
	if err != nil {
		w.err = err
	}
	w.mu.Unlock()
	w.wake()
}

// note stores the outcome of a request for a watch.
func (w *podWatch) note(err error) {
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	w.wake()
}

func (w *podWatch) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Replace sets all pods. The reflector calls it after it has listed them.
func (w *podWatch) Replace(all []any, version string) error {
	err := w.Store.Replace(all, version)
	w.mu.Lock()
	if w.isListed = true; w.isWatched {
		w.err = nil
	}
	w.mu.Unlock()
	w.wake()
	return err
}

// pods returns the pods as the last event left them. It waits until all are known, or a request fails.
func (w *podWatch) pods(ctx context.Context) (all []corev1.Pod, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errors.New("the API server has not sent all pods"))
	defer cancel()
	for {
		w.mu.Lock()
		isListed, err := w.isListed, w.err
		w.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case isListed:
			for _, pod := range w.List() {
				if pod, ok := pod.(*corev1.Pod); ok {
					all = append(all, *pod)
				}
			}
			return all, nil
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
