package publisher

import (
	"context"
	"time"
)

// stopTimeout is how long Run waits at its end for reconciles that are running.
const stopTimeout = 5 * time.Second

// Run reconciles volumes until ctx ends. It then returns when its goroutines have ended, or after 5 seconds if a reconcile hangs. It must
// be called once.
func (p *Publisher) Run(ctx context.Context) {
	p.table.startWorkers(func(w *worker) { p.running.Go(func() { w.run(ctx) }) })
	p.running.Go(func() { p.bindings.Run(ctx) })
	for _, m := range p.orphans {
		p.running.Go(func() { p.unmountOrphan(ctx, m) })
	}
	<-ctx.Done()
	p.StopWaiting()
	p.table.stopWorkers()
	ended := make(chan struct{})
	go func() { p.running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(stopTimeout):
	}
	close(p.ended)
}
