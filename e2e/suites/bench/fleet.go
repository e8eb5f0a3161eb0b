package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// nodesLoad is how many nodes there are, objects that each of them shows, and numbered
// states that an object goes through.
type nodesLoad struct{ nodes, objects, states int }

// fleet is the clients of an API server, on so many nodes, each of which keeps a copy of
// every object.
type fleet interface {
	// start starts all of them at once, after stop too.
	start(ctx context.Context) error
	stop() error
	// arrivals returns when each copy came into a numbered state of its object, by the
	// object's number. A copy that isn't in that state, or a later one, has no moment.
	arrivals(ctx context.Context, state int) ([][]time.Time, error)
	close() error
}

// makeFleet makes the clients of a lab's API server. They run when it returns.
type makeFleet func(context.Context, *lab, nodesLoad) (fleet, error)

// lacking is how many copies are not in a state.
func lacking(ctx context.Context, f fleet, load nodesLoad, state int) (int, error) {
	all, err := f.arrivals(ctx, state)
	n := load.nodes * load.objects
	for _, copies := range all {
		n -= len(copies)
	}
	return n, err
}

// awaitState waits until all copies are in a state.
func awaitState(ctx context.Context, f fleet, load nodesLoad, state int, timeout time.Duration) error {
	return harness.Poll(ctx, timeout, 250*time.Millisecond, func() error {
		n, err := lacking(ctx, f, load, state)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d of %d copies are not current", n, load.nodes*load.objects)
		}
		return err
	})
}

// delays returns how long after the moment at which each object's update was sent its copies came
// into the state.
func delays(ctx context.Context, f fleet, state int, sent []time.Time) ([]time.Duration, error) {
	all, err := f.arrivals(ctx, state)
	var out []time.Duration
	for object, copies := range all {
		for _, at := range copies {
			out = append(out, at.Sub(sent[object]))
		}
	}
	return out, err
}

// noClients is a fleet without a client.
type noClients struct{}

func noFleet(context.Context, *lab, nodesLoad) (fleet, error) { return noClients{}, nil }

func (noClients) start(context.Context) error { return nil }
func (noClients) stop() error                 { return nil }
func (noClients) close() error                { return nil }

func (noClients) arrivals(context.Context, int) ([][]time.Time, error) { return nil, nil }

// plugins are nodes whose volumes show the objects. One reader reads them; the i-th node's volume
// of an object is number i * objects + object.
type plugins struct {
	*volumesReader
	nodes   []*node
	objects int
}

func newPlugins(ctx context.Context, l *lab, load nodesLoad) (fleet, error) {
	p := &plugins{nodes: make([]*node, load.nodes), objects: load.objects}
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
	var files []string
	for i, n := range p.nodes {
		if err := n.mounted(load.objects); err != nil {
			return nil, err
		}
		for _, v := range shows[i] {
			files = append(files, n.valueFile(v))
		}
	}
	p.volumesReader, err = readVolumes(files, load.states)
	return p, err
}

func (p *plugins) start(ctx context.Context) error {
	return inParallel(len(p.nodes), len(p.nodes), func(i int) error { return p.nodes[i].Start(ctx) })
}

func (p *plugins) stop() error {
	var errs []error
	for _, n := range p.nodes {
		errs = append(errs, n.Kill())
	}
	return errors.Join(errs...)
}

func (p *plugins) close() error { return p.Close() }

func (p *plugins) arrivals(_ context.Context, state int) ([][]time.Time, error) {
	all := make([][]time.Time, p.objects)
	for i, t := range p.shown {
		if moments := t.moments(); len(moments) > state {
			all[i%p.objects] = append(all[i%p.objects], moments[state])
		}
	}
	return all, nil
}

// references are programs of bare reflectors.
type references struct {
	lab *lab
	// kind is the program's word for what it is to do.
	kind      string
	load      nodesLoad
	processes []*reference
	// starts is how many processes were started.
	starts int
}

// newReferences returns what makes programs of a kind.
func newReferences(kind string) makeFleet {
	return func(ctx context.Context, l *lab, load nodesLoad) (fleet, error) {
		f := &references{lab: l, kind: kind, load: load}
		return f, f.start(ctx)
	}
}

func (f *references) start(context.Context) error {
	for range f.load.nodes {
		f.starts++
		r, err := f.lab.newReference(fmt.Sprint(f.kind, "-", f.starts), f.kind, f.load.objects)
		if err != nil {
			return err
		}
		f.processes = append(f.processes, r)
	}
	return nil
}

func (f *references) stop() error {
	var errs []error
	for _, r := range f.processes {
		errs = append(errs, r.close())
	}
	f.processes = nil
	return errors.Join(errs...)
}

func (f *references) close() error { return f.stop() }

func (f *references) arrivals(ctx context.Context, state int) ([][]time.Time, error) {
	all := make([][]time.Time, f.load.objects)
	for _, r := range f.processes {
		known, err := r.states(ctx)
		if err != nil {
			return nil, err
		}
		for object := range all {
			k := known[objectName(object)]
			if number, err := strconv.Atoi(k.State); err == nil && number >= state {
				all[object] = append(all[object], time.Unix(0, k.At))
			}
		}
	}
	return all, nil
}
