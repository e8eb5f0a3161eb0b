package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"github.com/refvol/refvol/e2e/tools/controlplane"
)

// runIdle is B7: what a plugin with 1,000 volumes of as many objects does while nothing changes: its processor time, how often it wakes up, and
// what it asks the API server for, which must be nothing. The reference has as many reflectors of refvol, beside it: bookmarks wake both.
func runIdle(ctx context.Context, l *lab) error {
	count, lasts := scaled(l, 20, 1000), scaled(l, 5*time.Second, 10*time.Minute)
	if err := l.create(ctx, count, state); err != nil {
		return err
	}
	ours, err := plugin(ctx, l, count)
	if err != nil {
		return err
	}
	reference, err := ownReflectors(ctx, l, count)
	if err != nil {
		return err
	}
	if err := eventually(ctx, func() error { return l.watched(ctx, 2*count) }); err != nil {
		return err
	}
	for _, s := range []*subject{ours, reference} {
		if _, err := s.settle(ctx); err != nil {
			return err
		}
	}
	return errors.Join(l.reportIdle(ctx, lasts, map[string]int{"": ours.pid, "reference_": reference.pid}), ours.kill(), reference.kill())
}

// idling is what a process has used up.
type idling struct{ cpu, wakeUps float64 }

func idlingOf(pid int) (i idling, err error) {
	p, err := stat(pid)
	if err != nil {
		return i, err
	}
	i.cpu = p.CPUTime()
	i.wakeUps, err = wakeUps(pid)
	return i, err
}

// reportIdle reports what processes do while nothing changes. It fails if they ask the API server for anything.
func (l *lab) reportIdle(ctx context.Context, lasts time.Duration, pids map[string]int) (err error) {
	before := map[string]idling{}
	for name, pid := range pids {
		if before[name], err = idlingOf(pid); err != nil {
			return err
		}
	}
	asked, _, err := l.asked(ctx, l.APIServerPID())
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(lasts):
	}
	for name, pid := range pids {
		after, err := idlingOf(pid)
		if err != nil {
			return err
		}
		l.report.Value("idle."+name+"cpu_percent", "% of a core", 100*(after.cpu-before[name].cpu)/lasts.Seconds())
		l.report.Value("idle."+name+"wakeups_per_second", "wake-ups", (after.wakeUps-before[name].wakeUps)/lasts.Seconds())
	}
	now, _, err := l.asked(ctx, l.APIServerPID())
	if err != nil {
		return err
	}
	// The API server's own watches of ConfigMaps end after 5 to 10 minutes, and are then counted once more.
	watch := controlplane.Request{Verb: "WATCH", Resource: "configmaps"}
	now[watch] -= min(l.ownWatches, max(0, now[watch]-asked[watch]))
	total := 0
	for request, count := range now {
		if now[request] = count - asked[request]; now[request] == 0 {
			delete(now, request)
		}
		total += now[request]
	}
	l.report.Value("idle.requests_per_minute", "requests", float64(total)/lasts.Minutes())
	if total > 0 {
		return fmt.Errorf("the API server had %v while nothing changed", now)
	}
	return nil
}

// wakeUps returns how often the threads of a process have gone to sleep by themselves, each of which one wake-up ended.
func wakeUps(pid int) (total float64, err error) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return 0, err
	}
	for _, t := range threads {
		status, err := t.NewStatus()
		if err != nil {
			return 0, fmt.Errorf("read the status of thread %d: %w", t.PID, err)
		}
		total += float64(status.VoluntaryCtxtSwitches)
	}
	return total, nil
}
