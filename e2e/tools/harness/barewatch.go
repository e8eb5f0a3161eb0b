package harness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// BareWatch follows a ConfigMap by a watch of this process and does nothing with it. A test
// compares with that how long the plugin takes, as what else the machine does slows down
// both. Its goroutine ends with the context that it was made with.
type BareWatch struct {
	mu      sync.Mutex
	arrived map[string]time.Time // by resourceVersion
	changed chan struct{}        // closed, and replaced, at each event
}

// WatchBare returns a watch that has told the object's present state, which must exist.
func WatchBare(ctx context.Context, client kubernetes.Interface, namespace, configMap string) (*BareWatch, error) {
	events, err := client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, configMap).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMap %s/%s: %w", namespace, configMap, err)
	}
	w := &BareWatch{arrived: map[string]time.Time{}, changed: make(chan struct{})}
	if !w.take(<-events.ResultChan()) {
		events.Stop()
		return nil, fmt.Errorf("watch ConfigMap %s/%s: it told no state", namespace, configMap)
	}
	go func() {
		defer events.Stop()
		for e := range events.ResultChan() {
			w.take(e)
		}
	}()
	return w, nil
}

func (w *BareWatch) take(e watch.Event) bool {
	now := time.Now()
	object, ok := e.Object.(*corev1.ConfigMap)
	if !ok {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrived[object.ResourceVersion] = now
	close(w.changed)
	w.changed = make(chan struct{})
	return true
}

// Arrived waits for a version of the object, and returns when it came.
func (w *BareWatch) Arrived(ctx context.Context, resourceVersion string) (time.Time, error) {
	for {
		w.mu.Lock()
		at, ok := w.arrived[resourceVersion]
		changed := w.changed
		w.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for version %s at a watch: %w", resourceVersion, ctx.Err())
		}
	}
}

// Median returns the middle one of some times, the upper one of two.
func Median(all []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}
