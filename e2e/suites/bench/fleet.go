package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

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

// nobody is a fleet without a client.
type nobody struct{}

func (nobody) start(context.Context) error { return nil }
func (nobody) stop() error                 { return nil }
func (nobody) close() error                { return nil }

func (nobody) arrivals(context.Context, int) ([][]time.Time, error) { return nil, nil }

// pluginFleet is plugins whose volumes show the objects.
type pluginFleet struct{ *plugins }

func (f pluginFleet) start(ctx context.Context) error {
	return inParallel(len(f.nodes), len(f.nodes), func(i int) error { return f.nodes[i].Start(ctx) })
}

func (f pluginFleet) stop() error {
	var errs []error
	for _, n := range f.nodes {
		errs = append(errs, n.Kill())
	}
	return errors.Join(errs...)
}

func (f pluginFleet) arrivals(_ context.Context, state int) ([][]time.Time, error) {
	all := make([][]time.Time, len(f.paths))
	for object, paths := range f.paths {
		for _, path := range paths {
			if moments := f.shown[path].moments(); len(moments) > state {
				all[object] = append(all[object], moments[state])
			}
		}
	}
	return all, nil
}

// boundedFleet is programs of reflectors that begin few watches at a time.
type boundedFleet struct {
	lab       *lab
	load      nodesLoad
	processes []*reference
	// starts is how many processes were started.
	starts int
}

func (f *boundedFleet) start(context.Context) error {
	for range f.load.nodes {
		f.starts++
		r, err := f.lab.newReference(fmt.Sprint("bounded-", f.starts), "bounded", f.load.objects)
		if err != nil {
			return err
		}
		f.processes = append(f.processes, r)
	}
	return nil
}

func (f *boundedFleet) stop() error {
	var errs []error
	for _, r := range f.processes {
		errs = append(errs, r.close())
	}
	f.processes = nil
	return errors.Join(errs...)
}

func (f *boundedFleet) close() error { return f.stop() }

func (f *boundedFleet) arrivals(ctx context.Context, state int) ([][]time.Time, error) {
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
