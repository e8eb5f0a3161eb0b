package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// fleet is the clients of an API server, on so many nodes, each of which keeps copies of every object.
type fleet interface {
	// start starts all of them at once, after stop too.
	start(ctx context.Context)
	stop() error
	// arrivals returns when copies came into the state that want has for their object, or a later one. missing is how
	// many have not.
	arrivals(ctx context.Context, want []int) (at []time.Time, missing int, err error)
	pids() []int  // of all that run
	close() error // which returns what a reader should not have seen
}

// makeFleet makes the clients of a lab's API server. They run when it returns.
type makeFleet func(context.Context, *lab, load) fleet

// plugins are nodes whose volumes show the objects. One reader reads them; the i-th of them all shows object i modulo
// objects.
type plugins struct {
	*volumesReader
	nodes []*node
}

func newPlugins(ctx context.Context, l *lab, load load) fleet {
	p := &plugins{nodes: make([]*node, load.nodes)}
	files := make([][]string, load.nodes)
	fatal(inParallel(load.nodes, 4, func(i int) (err error) {
		defer catch(&err)
		p.nodes[i] = l.newNode(ctx, asPlugin, fmt.Sprint("node-", i))
		volumes := load.volumes()
		files[i] = p.nodes[i].valueFiles(volumes)
		return p.nodes[i].publishAll(ctx, volumes, 8)
	}))
	p.volumesReader = must(readVolumes(slices.Concat(files...)))
	return p
}

func (l load) volumes() []*harness.Volume {
	if l.beside == 0 {
		return inPods(asPlugin.volumes(l.objects, l.objects))
	}
	all := asPlugin.volumes(l.beside, 1)
	for i, v := range all {
		v.Attributes = map[string]string{"sources": fmt.Sprintf(
			"[{configMap: {name: %s}}, {configMap: {name: %s, items: [{key: %s, path: beside}]}}]",
			objectName(0), objectName(l.objects+i), valueKey)}
	}
	return all
}

func (p *plugins) start(ctx context.Context) {
	fatal(inParallel(len(p.nodes), len(p.nodes), func(i int) error { return p.nodes[i].Start(ctx) }))
}

func (p *plugins) stop() (err error) {
	for _, n := range p.nodes {
		err = errors.Join(err, n.Kill())
	}
	return err
}

func (p *plugins) arrivals(_ context.Context, want []int) (at []time.Time, missing int, err error) {
	for i, t := range p.shown {
		moments := t.moments()
		if state := want[i%len(want)]; state < len(moments) {
			at = append(at, moments[state])
		} else {
			missing++
		}
	}
	return at, missing, nil
}

func (p *plugins) pids() (pids []int) {
	for _, n := range p.nodes {
		pids = append(pids, n.PID())
	}
	return pids
}

// close proves that each volume still shows what the reader has seen last.
func (p *plugins) close() error {
	err := p.Close()
	for i, file := range p.files {
		content, readErr := readSmall(file)
		if last := state(len(p.shown[i].moments()) - 1); readErr == nil && content != last {
			readErr = fmt.Errorf("%s shows %q, want %q", file, content, last)
		}
		err = errors.Join(err, readErr)
	}
	return err
}

// references are programs of bare reflectors, of which so many were started.
type references struct {
	lab       *lab
	load      load
	processes []*subject
	starts    int
}

func (f *references) close() error { return f.stop() }

func newReferences(ctx context.Context, l *lab, load load) fleet {
	f := &references{lab: l, load: load}
	f.start(ctx)
	return f
}

func (f *references) start(context.Context) {
	for range f.load.nodes {
		f.starts++
		r := f.lab.newReference(fmt.Sprint("reflectors-", f.starts), f.load.objects+f.load.beside, f.load.opening)
		f.processes = append(f.processes, r)
	}
}

func (f *references) stop() (err error) {
	for _, r := range f.processes {
		err = errors.Join(err, r.kill())
	}
	f.processes = nil
	return err
}

func (f *references) pids() (pids []int) {
	for _, r := range f.processes {
		pids = append(pids, r.pid)
	}
	return pids
}

func (f *references) arrivals(ctx context.Context, want []int) (at []time.Time, missing int, err error) {
	for _, r := range f.processes {
		its, lacking, err := r.arrivals(ctx, want)
		if err != nil {
			return nil, 0, err
		}
		at, missing = append(at, its...), missing+lacking
	}
	return at, missing, nil
}
