package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// floor is a bare watch of one object: nothing that shows an object can be faster. Its one
// goroutine calls seen and ends with close.
type floor struct {
	watch watch.Interface
	ended chan struct{}
}

// newFloor watches a ConfigMap; seen is called with the state that each event tells, and
// the time of the event.
func (l *lab) newFloor(ctx context.Context, object string, seen func(value string, at time.Time)) (*floor, error) {
	w, err := l.client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, object).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", object, err)
	}
	f := &floor{watch: w, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for event := range w.ResultChan() {
			at := time.Now()
			if cm, ok := event.Object.(*corev1.ConfigMap); ok {
				seen(cm.Data[valueKey], at)
			}
		}
	}()
	return f, nil
}

func (f *floor) close() {
	f.watch.Stop()
	<-f.ended
}
