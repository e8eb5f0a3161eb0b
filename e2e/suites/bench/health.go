package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// health is how an API server was while clients recovered; the zero value is one that nobody asked.
type health struct {
	// busiest is the most requests of ConfigMaps in a second, as they were counted about every second.
	busiest float64
	// unready is how often it didn't say at /readyz that it is ready, once it had said so;
	// slowest is how long an answer there took at most, in seconds.
	unready int
	slowest float64
}

func (h health) String() string {
	if h == (health{}) {
		return ""
	}
	return fmt.Sprintf(", %.0f requests in the busiest second, not ready %d times, the slowest /readyz took %.2f s", h.busiest, h.unready, h.slowest)
}

const (
	// probeInterval is from an answer at /readyz to the next question; countInterval is the same
	// of the metrics, which take the API server longer.
	probeInterval = 100 * time.Millisecond
	countInterval = time.Second
	// probeTimeout is that of the kubelet's readiness probe of an API server, as kubeadm sets it.
	probeTimeout = 15 * time.Second
)

// observer asks an API server how it is, until stop. mu guards the fields below it.
type observer struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	probes []probe
	counts []count
}

// probe is a question at /readyz.
type probe struct {
	at   time.Time
	took time.Duration
	err  error
}

// count is how many requests there were since the API server started.
type count struct {
	at       time.Time
	requests int
}

// observe begins to ask the API server, if that is wanted. The caller stops it.
func (r *recovery) observe(ctx context.Context, requests int) *observer {
	ctx, cancel := context.WithCancel(ctx)
	o := &observer{cancel: cancel, counts: []count{{time.Now(), requests}}}
	if !r.load.observed {
		return o
	}
	repeat := func(interval time.Duration, ask func(context.Context)) {
		o.running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(interval):
				}
				ask(ctx)
			}
		})
	}
	repeat(probeInterval, func(ctx context.Context) { o.probe(ctx, r) })
	repeat(countInterval, func(ctx context.Context) { o.count(ctx, r) })
	return o
}

// stop may be called again.
func (o *observer) stop() {
	o.cancel()
	o.running.Wait()
}

func (o *observer) probe(ctx context.Context, r *recovery) {
	bounded, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p := probe{at: time.Now()}
	_, p.err = r.Client().RESTClient().Get().AbsPath("/readyz").MaxRetries(0).DoRaw(bounded)
	p.took = time.Since(p.at)
	if ctx.Err() != nil {
		return // nobody waited for the answer
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.probes = append(o.probes, p)
}

// count leaves out what an API server that is away or begins can't tell.
func (o *observer) count(ctx context.Context, r *recovery) {
	t, err := r.traffic(ctx)
	at := time.Now()
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts = append(o.counts, count{at, t.watches + t.reads()})
}

// health is how the API server was after a moment at which it was ready. began is when it
// started, if it did so meanwhile, and else the zero time.
func (o *observer) health(began, ready time.Time) health {
	o.mu.Lock()
	defer o.mu.Unlock()
	var h health
	for _, p := range o.probes {
		if p.at.Before(ready) {
			continue
		}
		h.slowest = max(h.slowest, p.took.Seconds())
		if p.err != nil {
			h.unready++
		}
	}
	before := o.counts[0]
	if !began.IsZero() {
		before = count{at: began} // another process, which counts from 0
	}
	for _, c := range o.counts[1:] {
		if c.at.Before(before.at) {
			continue
		}
		h.busiest = max(h.busiest, float64(c.requests-before.requests)/c.at.Sub(before.at).Seconds())
		before = c
	}
	return h
}
