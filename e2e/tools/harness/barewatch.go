package harness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// BareWatch follows a ConfigMap by a watch of this process and does nothing with it. A test compares with that how
// long the plugin takes, as what else the machine does slows down both. Its goroutine ends with the context that it
// was made with.
type BareWatch struct {
	arrived sync.Map // the times by resourceVersion
}

// WatchBare returns a watch that has told the object's present state, which must exist.
func WatchBare(ctx context.Context, client kubernetes.Interface, namespace, configMap string) (*BareWatch, error) {
	events, err := client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: configMap}))
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMap %s/%s: %w", namespace, configMap, err)
	}
	w, told := &BareWatch{}, make(chan bool, 1)
	go func() {
		defer close(told)
		defer events.Stop()
		for e := range events.ResultChan() {
			object, ok := e.Object.(*corev1.ConfigMap)
			if ok {
				w.arrived.Store(object.ResourceVersion, time.Now())
			}
			select {
			case told <- ok:
			default:
			}
		}
	}()
	if !<-told {
		return nil, fmt.Errorf("watch ConfigMap %s/%s: it told no state", namespace, configMap)
	}
	return w, nil
}

// Arrived waits for a version of the object, and returns when it came.
func (w *BareWatch) Arrived(ctx context.Context, resourceVersion string) (time.Time, error) {
	for {
		value, _ := w.arrived.Load(resourceVersion)
		if at, ok := value.(time.Time); ok {
			return at, nil
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for version %s at a watch: %w", resourceVersion, ctx.Err())
		}
	}
}

// Median returns the middle one of some times, the upper one of two.
func Median(all []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}
