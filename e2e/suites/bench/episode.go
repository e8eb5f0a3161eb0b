package main

import (
	"context"
	"fmt"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// episode is what one disruption took.
type episode struct {
	// current and ready are from when the clients could begin to recover until all copies
	// were current, and until the API server was ready, in seconds.
	current, ready float64
	bill
	health
}

func (p episode) String() string {
	return fmt.Sprintf("current after %.2f s, ready after %.2f s, %d handshakes, %d requests, %d refused, %.2f s of the API server's processor%s",
		p.current, p.ready, p.handshakes, p.requests, p.refused, p.processor.Seconds(), p.health)
}

// bill is what the API server was asked for.
type bill struct {
	// handshakes are those of TLS; requests are of ConfigMaps, the bench's writes left out;
	// refused are those answered with 429.
	handshakes, requests, refused int
	// processor is the API server's time on a processor.
	processor time.Duration
}

// since is the part of a bill that came after before.
func (b bill) since(before bill) bill {
	return bill{
		b.handshakes - before.handshakes, b.requests - before.requests, b.refused - before.refused,
		b.processor - before.processor,
	}
}

// bill is what the API server was asked for since it started.
func (r *recovery) bill(ctx context.Context) (b bill, err error) {
	t, err := r.traffic(ctx)
	if err != nil {
		return b, err
	}
	b.requests = t.watches + t.reads()
	if b.refused, err = r.Refusals(ctx); err != nil {
		return b, err
	}
	if b.handshakes, err = r.count.begun(); err != nil {
		return b, err
	}
	b.processor, err = processorTime(r.APIServerPID())
	return b, err
}

// episodes are those of one side through the same disruption.
type episodes []episode

// middle is the median of a figure, most the largest.
func (p episodes) middle(of func(episode) float64) float64 {
	figures := make([]float64, 0, len(p))
	for _, one := range p {
		figures = append(figures, of(one))
	}
	return measure.Median(figures)
}

func (p episodes) most(of func(episode) int) float64 {
	largest := 0
	for _, one := range p {
		largest = max(largest, of(one))
	}
	return float64(largest)
}

// reportDisruption reports the episodes of the three sides through one disruption: medians of
// times, and of counts the largest.
func (l *lab) reportDisruption(load recoveryLoad, u disruption, alone, reference, ours episodes) {
	value := func(name, unit string, v float64) { l.report.Value(load.prefix(u.name)+name, unit, v) }
	current := func(p episode) float64 { return p.current }
	ready := func(p episode) float64 { return p.ready }
	refused := func(p episode) int { return p.refused }

	// What the bench and the API server itself take is there without clients too, but not
	// at a start, where the bench only waits.
	var own bill
	if u.name != startName {
		own = alone[0].bill
		value("alone_s", "s", alone.middle(current))
	}
	value("ratio", "ratio", ours.middle(current)/reference.middle(current))
	value("refused_added", "requests", ours.most(refused)-reference.most(refused))
	for _, side := range []struct {
		name string
		episodes
	}{{"", ours}, {"reference_", reference}} {
		value(side.name+"s", "s", side.middle(current))
		value(side.name+"handshakes", "a node", side.most(func(p episode) int { return p.since(own).handshakes })/float64(load.nodes))
		value(side.name+"requests", "requests", side.most(func(p episode) int { return p.since(own).requests }))
		value(side.name+"requests_per_s", "requests/s", side.middle(func(p episode) float64 {
			return float64(p.since(own).requests) / p.current
		}))
		value(side.name+"refused", "requests", side.most(refused))
		value(side.name+"cpu", "s", side.middle(func(p episode) float64 { return p.since(own).processor.Seconds() }))
		if load.observed {
			value(side.name+"busiest", "requests/s", side.middle(func(p episode) float64 { return p.busiest }))
			value(side.name+"unready", "answers", side.most(func(p episode) int { return p.unready }))
			value(side.name+"readyz_s", "s", side.middle(func(p episode) float64 { return p.slowest }))
		}
	}
	if u.name == killedName {
		value("ready_s", "s", ours.middle(ready))
		value("reference_ready_s", "s", reference.middle(ready))
		value("alone_ready_s", "s", alone.middle(ready))
	}
}
