package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// runMemory is B6.
func runMemory(ctx context.Context, l *lab) error {
	counts := scaled(l, []int{0, 20}, []int{0, 100, 1000, 5000})
	least, most := counts[0], counts[len(counts)-1]
	fatal(l.create(ctx, most, state))
	sides := map[string]starter{"reference": reflectors, "own": ownReflectors, "refvol": plugin}
	resident := map[string]float64{}
	for _, count := range counts {
		for side, start := range sides {
			var err error
			if resident[fmt.Sprint(side, count)], err = l.footprint(ctx, side, count, start); err != nil {
				return fmt.Errorf("%s, %d: %w", side, count, err)
			}
		}
	}
	added := func(side string) float64 { return resident[fmt.Sprint(side, most)] - resident[fmt.Sprint(side, least)] }
	l.report.Value("memory.resident_ratio", "ratio", added("refvol")/added("reference"))
	l.report.Value("memory.own_ratio", "ratio", added("own")/added("reference"))
	return nil
}

// starter starts a process that follows so many objects, and returns when it knows them.
type starter func(ctx context.Context, l *lab, count int) *subject

// footprint reports what a process takes that follows so many objects, once it is at rest, and returns the bytes that
// it holds.
func (l *lab) footprint(ctx context.Context, side string, count int, start starter) (resident float64, err error) {
	defer catch(&err)
	others := connectionsTo(l.Port())
	s := start(ctx, l, count)
	// Nothing may be left to the next.
	defer func() {
		err = errors.Join(err, s.kill(), eventually(ctx, func() error { return l.watched(ctx, 0) }))
	}()
	fatal(eventually(ctx, func() error { return l.watched(ctx, count) }))
	resident = s.settle(ctx)
	value := func(what, unit string, v float64) {
		l.report.Value(fmt.Sprintf("memory.%s_%s_%d", side, what, count), unit, v)
	}
	value("rss", "bytes", resident)
	value("stacks", "bytes", s.number(ctx, "/debug/pprof/heap?debug=1", `(?m)^# Stack = (\d+) `))
	value("goroutines", "goroutines", s.number(ctx, "/debug/pprof/goroutine?debug=1", `(?m)^goroutine profile: total (\d+)$`))
	value("connections", "connections", connectionsTo(l.Port())-others)
	if side == "refvol" && count == scaled(l, 20, 1000) {
		open := must(l.OpenWatches(ctx, "configmaps"))
		l.report.Value("memory.watches_per_object", "watches", float64(open-l.ownWatches)/float64(count))
	}
	return resident, nil
}

func reflectors(ctx context.Context, l *lab, count int) *subject {
	return l.knowing(ctx, "reflectors", count)
}

func ownReflectors(ctx context.Context, l *lab, count int) *subject {
	return l.knowing(ctx, "own", count, "-own")
}

func (l *lab) knowing(ctx context.Context, name string, count int, more ...string) *subject {
	r := l.newReference(fmt.Sprint(name, "-", count), count, 0, more...)
	fatal(harness.Poll(ctx, soon, 200*time.Millisecond, func() error {
		_, missing, err := r.arrivals(ctx, make([]int, count))
		if err == nil && missing > 0 {
			err = fmt.Errorf("the reference does not know %d of %d objects", missing, count)
		}
		return err
	}))
	return r
}

// plugin starts a plugin with a volume of each object. The resync, which compares each volume with what is known of
// its objects, goes on. The full form has the default's interval.
func plugin(ctx context.Context, l *lab, count int) *subject {
	n := l.newNode(ctx, asPlugin, fmt.Sprint("node-", count), "--profiling-address=127.0.0.1:0", "--resync-interval="+scaled(l, "1s", "1m"))
	fatal(n.publishAll(ctx, asPlugin.volumes(count, max(count, 1)), 16))
	return n.subject()
}

// asked counts what the API server was asked for since it started, by clients of the bench, with watches of
// ConfigMaps that are still open. It also tells how many seconds a process was on a processor.
func (c *cluster) asked(ctx context.Context, pid int) (all map[controlplane.Request]int, cpu float64) {
	all = must(c.Requests(ctx))
	maps.DeleteFunc(all, func(r controlplane.Request, _ int) bool {
		return ownResource(r.Resource) || r.Verb == "WATCH" && r.Resource != "configmaps"
	})
	// A watch is counted as a request only when it ends.
	all[controlplane.Request{Verb: "WATCH", Resource: "configmaps"}] += must(c.OpenWatches(ctx, "configmaps"))
	p := must(stat(pid))
	return all, p.CPUTime()
}

// ownResource says whether it is the API server itself that asks for a resource, at its start or all the time: the
// plugin has no right to any of these, and the bench asks for none. The metrics have no resource.
func ownResource(resource string) bool {
	return slices.Contains([]string{
		"", "apiservices", "endpoints", "endpointslices", "flowschemas", "ipaddresses", "leases",
		"prioritylevelconfigurations", "servicecidrs", "services",
	}, resource)
}

// runIdle is B7. Bookmarks wake the reference, too.
func runIdle(ctx context.Context, l *lab) error {
	count, lasts := scaled(l, 20, 1000), scaled(l, 5*time.Second, 10*time.Minute)
	fatal(l.create(ctx, count, state))
	ours, reference := plugin(ctx, l, count), ownReflectors(ctx, l, count)
	fatal(eventually(ctx, func() error { return l.watched(ctx, 2*count) }))
	ours.settle(ctx)
	reference.settle(ctx)
	return errors.Join(l.reportIdle(ctx, lasts, map[string]int{"": ours.pid, "reference_": reference.pid}), ours.kill(), reference.kill())
}

// idling is what a process has used up. Its threads have gone to sleep by themselves so often, each of which one wake-up ended.
type idling struct{ cpu, wakeUps float64 }

func idlingOf(pid int) (i idling) {
	p := must(stat(pid))
	i.cpu = p.CPUTime()
	for _, t := range must(procfs.AllThreads(pid)) {
		status := must(t.NewStatus())
		i.wakeUps += float64(status.VoluntaryCtxtSwitches)
	}
	return i
}

// reportIdle reports what processes do while nothing changes. It fails if they ask the API server for anything.
func (l *lab) reportIdle(ctx context.Context, lasts time.Duration, pids map[string]int) error {
	before := map[string]idling{}
	for name, pid := range pids {
		before[name] = idlingOf(pid)
	}
	asked, _ := l.asked(ctx, l.APIServerPID())
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(lasts):
	}
	for name, pid := range pids {
		after := idlingOf(pid)
		l.report.Value("idle."+name+"cpu_percent", "% of a core", 100*(after.cpu-before[name].cpu)/lasts.Seconds())
		l.report.Value("idle."+name+"wakeups_per_second", "wake-ups", (after.wakeUps-before[name].wakeUps)/lasts.Seconds())
	}
	now, _ := l.asked(ctx, l.APIServerPID())
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
