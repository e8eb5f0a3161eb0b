package main

import (
	"context"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/inuse"
)

// restAfterList is how many times as long as a list of all pods took the next one has to wait: of a large
// cluster it is hundreds of megabytes.
const restAfterList = 10

// podList lists the pods that use the driver, and keeps the answer for a while. It is for one goroutine at a
// time.
type podList struct {
	list func(context.Context) ([]inuse.Pod, error)

	kept []inuse.Pod
	took time.Duration
	at   time.Time
	// fresh says that the last answer was not one that was kept.
	fresh bool
}

// get returns the pods. The caller may change the slice.
func (l *podList) get(ctx context.Context) ([]inuse.Pod, error) {
	l.fresh = l.at.IsZero() || time.Since(l.at) >= restAfterList*l.took
	if l.fresh {
		began := time.Now()
		pods, err := l.list(ctx)
		if err != nil {
			return nil, err
		}
		l.kept, l.at, l.took = pods, time.Now(), time.Since(began)
	}
	return slices.Clone(l.kept), nil
}

// renew has the next get list the pods, and returns false if the last one did.
func (l *podList) renew() bool {
	l.at = time.Time{}
	return !l.fresh
}
