package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/refvol/refvol/pkg/fleet"
)

// restAfterList is how many times as long as a list of all pods took the next one has to wait: of a large
// cluster it is hundreds of megabytes.
const restAfterList = 3

// podList lists the pods that use the driver, and keeps the answer for a while. get and renew are for one goroutine
// at a time, and forget is safe for concurrent use with them.
type podList struct {
	list func(context.Context) ([]fleet.Pod, error)

	// mu guards what is below it.
	mu   sync.Mutex
	kept []fleet.Pod
	took time.Duration
	at   time.Time
	// fresh says that the last answer was not one that was kept.
	fresh bool
}

// get returns the pods. The caller may change the slice.
func (l *podList) get(ctx context.Context) ([]fleet.Pod, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
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

// forget takes a pod out that has ended, so that nobody asks for it again.
func (l *podList) forget(namespace, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = slices.DeleteFunc(l.kept, func(pod fleet.Pod) bool { return pod.Namespace == namespace && pod.Name == name })
}

// renew has the next get list the pods, and returns false if the last one did.
func (l *podList) renew() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = time.Time{}
	return !l.fresh
}
