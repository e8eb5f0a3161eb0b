package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// runMemory is B6: what a process takes that shows so many volumes of one object each, against one of as many bare
// reflectors of client-go, and one of as many of refvol's own. All are looked at in the same way, in a process of its
// own for each number. It also tells how many watches each object has.
func runMemory(ctx context.Context, l *lab) error {
	counts := scaled(l, []int{0, 20}, []int{0, 100, 1000, 5000})
	least, most := counts[0], counts[len(counts)-1]
	if err := l.create(ctx, most, state); err != nil {
		return err
	}
	sides := map[string]func(context.Context, *lab, int) (*subject, error){"reference": reflectors, "own": ownReflectors, "refvol": plugin}
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

// footprint reports what a process takes that follows so many objects, once it is at rest, and returns the bytes that
// it holds.
func (l *lab) footprint(ctx context.Context, side string, count int, start func(context.Context, *lab, int) (*subject, error)) (resident float64, err error) {
	others, err := connectionsTo(l.Port())
	if err != nil {
		return 0, err
	}
	s, err := start(ctx, l, count)
	if err != nil {
		return 0, err
	}
	// Nothing may be left to the next.
	defer func() {
		err = errors.Join(err, s.kill(), eventually(ctx, func() error { return l.watched(ctx, 0) }))
	}()
	if err := eventually(ctx, func() error { return l.watched(ctx, count) }); err != nil {
		return 0, err
	}
	if resident, err = s.settle(ctx); err != nil {
		return 0, err
	}
	stacks, err := s.number(ctx, "/debug/pprof/heap?debug=1", `(?m)^# Stack = (\d+) `)
	goroutines, noGoroutines := s.number(ctx, "/debug/pprof/goroutine?debug=1", `(?m)^goroutine profile: total (\d+)$`)
	connections, noConnections := connectionsTo(l.Port())
	if err = errors.Join(err, noGoroutines, noConnections); err != nil {
		return 0, err
	}
	value := func(what, unit string, v float64) {
		l.report.Value(fmt.Sprintf("memory.%s_%s_%d", side, what, count), unit, v)
	}
	value("rss", "bytes", resident)
	value("stacks", "bytes", stacks)
	value("goroutines", "goroutines", goroutines)
	value("connections", "connections", connections-others)
	if side == "refvol" && count == scaled(l, 20, 1000) {
		err = l.reportWatches(ctx, count)
	}
	return resident, err
}

// reflectors starts a reference with client-go's reflectors, and returns when it knows the objects.
func reflectors(ctx context.Context, l *lab, count int) (*subject, error) {
	return l.knowing(ctx, "reflectors", count)
}

// ownReflectors is reflectors with those of refvol.
func ownReflectors(ctx context.Context, l *lab, count int) (*subject, error) {
	return l.knowing(ctx, "own", count, "-own")
}

func (l *lab) knowing(ctx context.Context, name string, count int, more ...string) (*subject, error) {
	r, err := l.newReference(fmt.Sprint(name, "-", count), count, 0, more...)
	if err != nil {
		return nil, err
	}
	return r, harness.Poll(ctx, soon, 200*time.Millisecond, func() error {
		_, missing, err := r.arrivals(ctx, make([]int, count))
		if err == nil && missing > 0 {
			err = fmt.Errorf("the reference does not know %d of %d objects", missing, count)
		}
		return err
	})
}

// plugin starts a plugin with a volume of each object. The resync, which compares each volume with what is known of
// its objects, goes on. The full form has the default's interval.
func plugin(ctx context.Context, l *lab, count int) (*subject, error) {
	n, err := l.newNode(ctx, asPlugin, fmt.Sprint("node-", count), "--profiling-address=127.0.0.1:0", "--resync-interval="+scaled(l, "1s", "1m"))
	if err != nil {
		return nil, err
	}
	if err := n.publishAll(ctx, asPlugin.volumes(count, max(count, 1)), 16); err != nil {
		return nil, err
	}
	return n.subject()
}

// reportWatches reports how many watches there are for each of so many objects.
func (l *lab) reportWatches(ctx context.Context, objects int) error {
	open, err := l.OpenWatches(ctx, "configmaps")
	if err != nil {
		return err
	}
	l.report.Value("memory.watches_per_object", "watches", float64(open-l.ownWatches)/float64(objects))
	return nil
}

// asked counts what the API server was asked for since it started, by clients of the bench, with watches of
// ConfigMaps that are still open. It also tells how many seconds a process was on a processor.
func (c *cluster) asked(ctx context.Context, pid int) (all map[controlplane.Request]int, cpu float64, err error) {
	if all, err = c.Requests(ctx); err != nil {
		return nil, 0, err
	}
	maps.DeleteFunc(all, func(r controlplane.Request, _ int) bool {
		return ownResource(r.Resource) || r.Verb == "WATCH" && r.Resource != "configmaps"
	})
	// A watch is counted as a request only when it ends.
	open, err := c.OpenWatches(ctx, "configmaps")
	if err != nil {
		return nil, 0, err
	}
	all[controlplane.Request{Verb: "WATCH", Resource: "configmaps"}] += open
	p, err := stat(pid)
	return all, p.CPUTime(), err
}

// ownResource says whether it is the API server itself that asks for a resource, at its start or all the time: the
// plugin has no right to any of these, and the bench asks for none. The metrics have no resource.
func ownResource(resource string) bool {
	return slices.Contains([]string{
		"", "apiservices", "endpoints", "endpointslices", "flowschemas", "ipaddresses", "leases",
		"prioritylevelconfigurations", "servicecidrs", "services",
	}, resource)
}
