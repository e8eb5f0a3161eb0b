package main

import (
	"context"
	"fmt"
	"time"
)

// idleCount is with how many volumes the plugin is looked at while nothing changes, idleTime how long. The resync,
// which compares each volume with what is known of its objects, goes on meanwhile. The full form has the default's
// interval, and the short one has resyncs too.
func idleCount(l *lab) int          { return scaled(l, 20, 1000) }
func idleTime(l *lab) time.Duration { return scaled(l, 5*time.Second, 5*time.Minute) }
func resyncInterval(l *lab) string  { return "--resync-interval=" + scaled(l, "1s", "1m") }

// reportIdle reports what the plugin does while nothing changes, and fails if it asks the API server for anything.
func (n *node) reportIdle(ctx context.Context) error {
	interval := idleTime(n.lab)
	busy, asked, err := n.idle(ctx, interval)
	if err != nil {
		return err
	}
	n.lab.report.Value("memory.idle_cpu_percent", "% of a core", 100*busy.Seconds()/interval.Seconds())
	n.lab.report.Value("memory.idle_requests_per_minute", "requests", float64(asked.asked()+asked.watches)/interval.Minutes())
	if asked.asked()+asked.watches > 0 {
		return fmt.Errorf("the API server had %v while nothing changed", asked)
	}
	return nil
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
