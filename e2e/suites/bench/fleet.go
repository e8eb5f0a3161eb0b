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
// states that an object goes through. Volume i of a node shows object i.
type nodesLoad struct {
	nodes, objects, states int
	// beside is how many more objects each node shows, which go through no states. If there are
	// any, there is one volume for each of them, and all volumes show the first object too.
	beside int
}

// followed is how many objects each node follows, watched how many watches that makes.
func (l nodesLoad) followed() int { return l.objects + l.beside }
func (l nodesLoad) watched() int  { return l.nodes * l.followed() }

// volumes returns the volumes of a node.
func (l nodesLoad) volumes() []*harness.Volume {
	if l.beside == 0 {
		return volumes(l.objects, l.objects)
	}
	all := volumes(l.beside, 1)
	for i, v := range all {
		v.Attributes = map[string]string{"sources": fmt.Sprintf(
			"[{configMap: {name: %s}}, {configMap: {name: %s, items: [{key: %s, path: beside}]}}]",
			objectName(0), objectName(l.objects+i), valueKey)}
	}
	return all
}

// fleet is the clients of an API server, on so many nodes, each of which keeps copies of
// every object.
type fleet interface {
	// start starts all of them at once, after stop too.
	start(ctx context.Context) error
	stop() error
	// copies is how many of them there are, of objects that go through states.
	copies() int
	// arrivals returns when each copy came into a numbered state of its object, by the
	// object's number. A copy that isn't in that state, or a later one, has no moment.
	arrivals(ctx context.Context, state int) ([][]time.Time, error)
	close() error
}

// makeFleet makes the clients of a lab's API server. They run when it returns.
type makeFleet func(context.Context, *lab, nodesLoad) (fleet, error)

// lacking is how many copies are not in a state.
func lacking(ctx context.Context, f fleet, state int) (int, error) {
	all, err := f.arrivals(ctx, state)
	n := f.copies()
	for _, copies := range all {
		n -= len(copies)
	}
	return n, err
}

// awaitState waits until all copies are in a state. It asks seldom, and not at once: the clients note
// the times by themselves, and the answers of so many processes take their time.
func awaitState(ctx context.Context, f fleet, load nodesLoad, state int, timeout time.Duration) error {
	pause := time.Duration(load.nodes) * 10 * time.Millisecond
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
	}
	return harness.Poll(ctx, timeout, max(pause, 250*time.Millisecond), func() error {
		n, err := lacking(ctx, f, state)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d of %d copies are not current", n, f.copies())
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
func (noClients) copies() int                 { return 0 }
func (noClients) close() error                { return nil }

func (noClients) arrivals(context.Context, int) ([][]time.Time, error) { return nil, nil }

// plugins are nodes whose volumes show the objects. One reader reads them; the i-th of them all
// shows object i modulo objects.
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
		shows[i] = load.volumes()
		return p.nodes[i].publishAll(ctx, shows[i], 8)
	})
	if err != nil {
		return nil, err
	}
	var files []string
	for i, n := range p.nodes {
		if err := n.mounted(len(shows[i])); err != nil {
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

func (p *plugins) copies() int { return len(p.shown) }

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
		r, err := f.lab.newReference(fmt.Sprint(f.kind, "-", f.starts), f.kind, f.load.followed())
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

func (f *references) copies() int { return f.load.nodes * f.load.objects }

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
