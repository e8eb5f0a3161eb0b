package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	nodesSize = 1 << 10
	// nodesInterval has an update fall between the prunes that follow those before, a
	// second after each.
	nodesInterval = 400 * time.Millisecond
)

// runNodes is B11: what the API server pays for many nodes, and how fast an update reaches
// all of them. On each node a volume shows each of some objects, so each object is watched
// by all nodes: it is the widest fan-out that so many watches can have. The references are
// programs with as many bare reflectors. Either has an API server of its own in each round.
func runNodes(ctx context.Context, l *lab) error {
	load := nodesLoad{nodes: scaled(l, 2, 100), objects: scaled(l, 3, 50)}
	var ours, theirs []cost
	var oursMS, theirsMS []float64
	for round := range scaled(l, 1, 3) {
		for _, side := range []struct {
			name  string
			start func(context.Context, *lab, nodesLoad) (crowd, error)
			costs *[]cost
			ms    *[]float64
		}{
			{"reference", startReferences, &theirs, &theirsMS},
			{"refvol", startPlugins, &ours, &oursMS},
		} {
			c, ms, err := l.roundOf(ctx, fmt.Sprintf("b11-%s-%d", side.name, round), load, side.start)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", side.name, round, err)
			}
			*side.costs, *side.ms = append(*side.costs, c), append(*side.ms, ms...)
		}
	}
	medianOf := func(all []cost, of func(cost) float64) float64 {
		var figures []float64
		for _, c := range all {
			figures = append(figures, of(c))
		}
		return median(figures)
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
		l.report.Samples("nodes.propagation_ms", "ms", oursMS),
		l.report.Samples("nodes.propagation_reference_ms", "ms", theirsMS))
}

// nodesLoad is how many nodes there are, objects that each of them shows, and numbered
// states that an object goes through, if more than one.
type nodesLoad struct{ nodes, objects, states int }

// cost is what an API server has paid in a round.
type cost struct {
	// resident and inUse are its memory at the end, growth is inUse without what it took
	// before the nodes came, in bytes; processor is the time from then to the end.
	resident, inUse, growth float64
	processor               time.Duration
	connections             int
}

// crowd is the processes of a round.
type crowd interface {
	// delays waits until all nodes have the state of each object that was sent at a
	// moment, and returns how long that took for each node and object, in milliseconds.
	delays(ctx context.Context, sent []time.Time) ([]float64, error)
	close() error
}

// roundOf is one round with an API server of its own.
func (l *lab) roundOf(
	ctx context.Context, name string, load nodesLoad, start func(context.Context, *lab, nodesLoad) (crowd, error),
) (c cost, ms []float64, err error) {
	own, err := l.bench.newLab(ctx, scenario{id: name})
	if err != nil {
		return c, nil, err
	}
	defer func() { err = errors.Join(err, own.stop()) }()
	if err := own.create(ctx, load.objects, "before", nodesSize); err != nil {
		return c, nil, err
	}
	before, err := own.serverCost(ctx)
	if err != nil {
		return c, nil, err
	}
	all, err := start(ctx, own, load)
	if err != nil {
		return c, nil, err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	if err := eventually(ctx, func() error { return own.watched(ctx, load.nodes*load.objects) }); err != nil {
		return c, nil, err
	}
	sent, err := own.updateEach(ctx, load.objects)
	if err != nil {
		return c, nil, err
	}
	if ms, err = all.delays(ctx, sent); err != nil {
		return c, nil, err
	}
	c, err = own.serverCost(ctx)
	c.growth, c.processor = c.inUse-before.inUse, c.processor-before.processor
	return c, ms, err
}

// updateEach puts each object into state 0, one after the other at a steady rate, and
// returns when each request was sent.
func (l *lab) updateEach(ctx context.Context, objects int) (sent []time.Time, err error) {
	ticker := time.NewTicker(nodesInterval)
	defer ticker.Stop()
	for i := range objects {
		<-ticker.C
		sent = append(sent, time.Now())
		if err := l.update(ctx, objectName(i), state(0), nodesSize); err != nil {
			return nil, err
		}
	}
	return sent, nil
}

var (
	serverHeap  = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)
	serverStack = regexp.MustCompile(`(?m)^# Stack = (\d+) `)
)

// serverCost is what the API server takes now, after a collection of its garbage.
func (l *lab) serverCost(ctx context.Context) (cost, error) {
	var c cost
	profile, err := l.Client().RESTClient().Get().AbsPath("/debug/pprof/heap").Param("debug", "1").Param("gc", "1").DoRaw(ctx)
	if err != nil {
		return c, fmt.Errorf("profile of the API server: %w", err)
	}
	for _, part := range []*regexp.Regexp{serverHeap, serverStack} {
		found := part.FindSubmatch(profile)
		if found == nil {
			return c, fmt.Errorf("the API server's profile has nothing that is like %s", part)
		}
		bytes, err := strconv.ParseFloat(string(found[1]), 64)
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

// references are programs with bare reflectors.
type references struct {
	all     []*reference
	objects int
}

func startReferences(ctx context.Context, l *lab, load nodesLoad) (crowd, error) {
	r := &references{objects: load.objects}
	for i := range load.nodes {
		one, err := l.newReference(fmt.Sprint("reflectors-", i), "reflector", load.objects)
		if err != nil {
			return nil, err
		}
		r.all = append(r.all, one)
	}
	for _, one := range r.all {
		if _, err := one.await(ctx, load.objects, always("before")); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *references) delays(ctx context.Context, sent []time.Time) ([]float64, error) {
	var all []time.Duration
	for _, one := range r.all {
		at, err := one.await(ctx, r.objects, always(state(0)))
		if err != nil {
			return nil, err
		}
		for i := range sent {
			all = append(all, at[i].Sub(sent[i]))
		}
	}
	return measure.Milliseconds(all), nil
}

func (r *references) close() error {
	var errs []error
	for _, one := range r.all {
		errs = append(errs, one.close())
	}
	return errors.Join(errs...)
}

// plugins are nodes whose volumes one reader reads.
type plugins struct {
	nodes  []*node
	reader *reader
	// shown has the timeline of each volume by the path of its file.
	shown map[string]*timeline
	// paths has the files that show an object.
	paths [][]string
}

func startPlugins(ctx context.Context, l *lab, load nodesLoad) (crowd, error) {
	p, err := newPlugins(ctx, l, load)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// newPlugins starts nodes whose volumes show the objects, and a reader of all of them.
func newPlugins(ctx context.Context, l *lab, load nodesLoad) (*plugins, error) {
	p := &plugins{nodes: make([]*node, load.nodes), shown: map[string]*timeline{}, paths: make([][]string, load.objects)}
	shows := make([][]*harness.Volume, load.nodes)
	err := inParallel(load.nodes, 4, func(i int) (err error) {
		if p.nodes[i], err = l.newNode(ctx, fmt.Sprint("node-", i)); err != nil {
			return err
		}
		shows[i] = volumes(load.objects, load.objects)
		return p.nodes[i].publishAll(ctx, shows[i], 8)
	})
	if err != nil {
		return nil, err
	}
	for i, n := range p.nodes {
		if err := n.mounted(load.objects); err != nil {
			return nil, err
		}
		for object, v := range shows[i] {
			path := n.valueFile(v)
			p.shown[path] = newTimeline(max(load.states, 1))
			p.paths[object] = append(p.paths[object], path)
		}
	}
	if p.reader, err = newReader(func(path, content string, at time.Time) { p.shown[path].see(content, at) }); err != nil {
		return nil, err
	}
	for path := range p.shown {
		if err := p.reader.add(filepath.Dir(path), path); err != nil {
			return nil, errors.Join(err, p.reader.close())
		}
	}
	return p, nil
}

func (p *plugins) delays(ctx context.Context, sent []time.Time) ([]float64, error) {
	var all []time.Duration
	for object, paths := range p.paths {
		for _, path := range paths {
			if err := eventually(ctx, p.shown[path].complete); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			all = append(all, p.shown[path].after(sent[object:object+1])...)
		}
	}
	return measure.Milliseconds(all), nil
}

func (p *plugins) close() error { return p.reader.close() }
