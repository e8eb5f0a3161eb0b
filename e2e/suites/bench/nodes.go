package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// nodesInterval has an update fall between the prunes that follow those before, a
// second after each.
const nodesInterval = 400 * time.Millisecond

// runNodes is B11: what the API server pays for many nodes, and how fast an update reaches
// all of them. On each node a volume shows each of some objects, so each object is watched
// by all nodes: it is the widest fan-out that so many watches can have. The references are
// programs with as many bare reflectors. Either has an API server of its own in each round.
func runNodes(ctx context.Context, l *lab) error {
	load := nodesLoad{nodes: scaled(l, 2, 100), objects: scaled(l, 3, 50), states: 1}
	var ours, theirs []cost
	var oursTook, theirsTook []time.Duration
	for round := range scaled(l, 1, 3) {
		for _, side := range []struct {
			name  string
			fleet makeFleet
			costs *[]cost
			took  *[]time.Duration
		}{
			{"reference", newReferences("reflector"), &theirs, &theirsTook},
			{"refvol", newPlugins, &ours, &oursTook},
		} {
			c, took, err := l.roundOf(ctx, fmt.Sprintf("b11-%s-%d", side.name, round), load, side.fleet)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", side.name, round, err)
			}
			*side.costs, *side.took = append(*side.costs, c), append(*side.took, took...)
		}
	}
	medianOf := func(all []cost, of func(cost) float64) float64 {
		var figures []float64
		for _, c := range all {
			figures = append(figures, of(c))
		}
		return measure.Median(figures)
	}
	for _, figure := range []struct {
		name, unit string
		of         func(cost) float64
	}{
		{"rss", "bytes", func(c cost) float64 { return c.resident }},
		{"in_use", "bytes", func(c cost) float64 { return c.inUse }},
		{"in_use_growth", "bytes", func(c cost) float64 { return c.growth }},
		{"cpu", "s", func(c cost) float64 { return c.processor.Seconds() }},
		{"connections", "connections", func(c cost) float64 { return float64(c.connections) }},
	} {
		a, b := medianOf(ours, figure.of), medianOf(theirs, figure.of)
		l.report.Value("nodes.apiserver_"+figure.name, figure.unit, a)
		l.report.Value("nodes.apiserver_"+figure.name+"_reference", figure.unit, b)
		l.report.Value("nodes.apiserver_"+figure.name+"_ratio", "ratio", a/b)
	}
	return errors.Join(
		l.report.Samples("nodes.propagation_ms", "ms", measure.Milliseconds(oursTook)),
		l.report.Samples("nodes.propagation_reference_ms", "ms", measure.Milliseconds(theirsTook)))
}

// cost is what an API server has paid in a round.
type cost struct {
	// resident and inUse are its memory at the end, growth is inUse without what it took
	// before the nodes came, in bytes; processor is the time from then to the end.
	resident, inUse, growth float64
	processor               time.Duration
	connections             int
}

// roundOf is one round with an API server of its own.
func (l *lab) roundOf(ctx context.Context, name string, load nodesLoad, newFleet makeFleet) (c cost, took []time.Duration, err error) {
	own, err := l.bench.newLab(ctx, scenario{id: name})
	if err != nil {
		return c, nil, err
	}
	defer func() { err = errors.Join(err, own.stop()) }()
	if err := own.create(ctx, load.followed(), always("before")); err != nil {
		return c, nil, err
	}
	before, err := own.serverCost(ctx)
	if err != nil {
		return c, nil, err
	}
	all, err := newFleet(ctx, own, load)
	if err != nil {
		return c, nil, err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	if err := eventually(ctx, func() error { return own.watched(ctx, load.watched()) }); err != nil {
		return c, nil, err
	}
	sent, err := own.updateSteadily(ctx, load.objects, nodesInterval, func(i int) (object, value string) { return objectName(i), state(0) })
	if err != nil {
		return c, nil, err
	}
	if err := awaitState(ctx, all, load, 0, soon); err != nil {
		return c, nil, err
	}
	if took, err = delays(ctx, all, 0, sent); err != nil {
		return c, nil, err
	}
	c, err = own.serverCost(ctx)
	c.growth, c.processor = c.inUse-before.inUse, c.processor-before.processor
	return c, took, err
}

// serverCost is what the API server takes now, after a collection of its garbage.
func (l *lab) serverCost(ctx context.Context) (cost, error) {
	var c cost
	profile, err := l.Client().RESTClient().Get().AbsPath("/debug/pprof/heap").Param("debug", "1").Param("gc", "1").DoRaw(ctx)
	if err != nil {
		return c, fmt.Errorf("profile of the API server: %w", err)
	}
	for _, part := range []*regexp.Regexp{heapInUse, stackInUse} {
		bytes, err := numberIn(profile, part)
		if err != nil {
			return c, err
		}
		c.inUse += bytes
	}
	pid := l.APIServerPID()
	if c.resident, err = residentBytes(pid); err != nil {
		return c, err
	}
	if c.connections, err = connections(pid); err != nil {
		return c, err
	}
	c.processor, err = processorTime(pid)
	return c, err
}
