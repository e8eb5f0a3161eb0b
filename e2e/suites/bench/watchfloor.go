package main

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// beginWatch opens a bare watch of an object that begins with its state, and closes it once
// that has been told: nothing that is to watch an object can know its state earlier.
func (l *lab) beginWatch(ctx context.Context, object string) error {
	withState := true
	w, err := l.client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:        fields.OneTermEqualSelector(metav1.ObjectNameField, object).String(),
		SendInitialEvents:    &withState,
		AllowWatchBookmarks:  true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", object, err)
	}
	defer w.Stop()
	added := false
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Added:
			added = true
		case watch.Bookmark: // the state's end
			if added {
				return nil
			}
		}
	}
	return errors.Join(fmt.Errorf("watch %s: it ended before the state was told", object), ctx.Err())
}
