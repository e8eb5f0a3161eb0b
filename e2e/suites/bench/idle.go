package main

import (
	"context"
	"fmt"
	"time"
)

// runIdle is B7: what a plugin does while nothing changes. The resync, which compares each
// volume with what is known of its objects, goes on meanwhile.
func runIdle(ctx context.Context, l *lab) error {
	count, interval := scaled(l, 50, 1000), scaled(l, 5*time.Second, 5*time.Minute)
	if err := l.create(ctx, count, state); err != nil {
		return err
	}
	// The full form has the default; the short one has resyncs too.
	n, err := l.newNode(ctx, "node", "--resync-interval="+scaled(l, "1s", "1m"))
	if err != nil {
		return err
	}
	all := volumes(count, count)
	if err := n.publishAll(ctx, all, costAtOnce); err != nil {
		return err
	}
	if err := n.showNumbered(all, count); err != nil {
		return err
	}
	if err := eventually(ctx, func() error { return n.pruned(all) }); err != nil {
		return err
	}
	busy, asked, err := n.idle(ctx, interval)
	if err != nil {
		return err
	}
	l.report.Value("idle.cpu_percent", "% of a core", 100*busy.Seconds()/interval.Seconds())
	l.report.Value("idle.requests_per_minute", "requests", float64(asked.asked())/interval.Minutes())
	l.report.Value("idle.watches_per_minute", "watches", float64(asked.watches)/interval.Minutes())
	if asked.asked() > 0 {
		return fmt.Errorf("nothing changed, and the API server had %v", asked)
	}
	return n.showNumbered(all, count)
}

// idle lets time pass, and returns how long the plugin was on a processor meanwhile and
// what the API server was asked for.
func (n *node) idle(ctx context.Context, interval time.Duration) (busy time.Duration, asked traffic, err error) {
	before, err := n.lab.traffic(ctx)
	if err != nil {
		return 0, asked, err
	}
	begin, err := processorTime(n.PID())
	if err != nil {
		return 0, asked, err
	}
	select {
	case <-ctx.Done():
		return 0, asked, ctx.Err()
	case <-time.After(interval):
	}
	end, err := processorTime(n.PID())
	if err != nil {
		return 0, asked, err
	}
	after, err := n.lab.traffic(ctx)
	return end - begin, after.since(before), err
}
