package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// patience is how long clients may take to recover.
	patience = 10 * time.Minute
	// steadyInterval is the time between two updates while nothing is wrong.
	steadyInterval = 20 * time.Millisecond
)

// recoveryLoad is how many clients of how many objects there are, and what they go through.
type recoveryLoad struct {
	nodesLoad
	// scenario is the id of the one that it is of; figure is what its figures' names begin with.
	scenario, figure string
	// reference is the references' kind.
	reference string
	all       []disruption
	// steady has updates follow, while nothing is wrong.
	steady bool
	// observed has the API server be asked, all the time, how it is.
	observed bool
}

func (l recoveryLoad) String() string {
	return fmt.Sprintf("%dx%d", l.nodes, cmp.Or(l.beside, l.objects))
}

// prefix is what the names of a disruption's figures begin with.
func (l recoveryLoad) prefix(disruption string) string {
	return fmt.Sprintf("%s.%s_%s_", l.figure, l, disruption)
}

func recoveryLoads(short bool) []recoveryLoad {
	load := func(nodes, objects int, faulty bool) recoveryLoad {
		l := recoveryLoad{
			nodesLoad: nodesLoad{nodes: nodes, objects: objects}, scenario: "B12", figure: "recovery",
			reference: "bounded", all: []disruption{starting(short)}, steady: faulty,
		}
		if faulty {
			l.all = append(l.all, faults(short)...)
		}
		return l
	}
	if short {
		return []recoveryLoad{load(2, 20, true)}
	}
	return []recoveryLoad{load(1, 1000, false), load(5, 600, false), load(10, 1000, true)}
}

// runRecovery is B12: how long clients take until all that they show is current, after they
// were started and after the API server or etcd was away, and what they ask of the API
// server meanwhile. The clients are plugins, the references programs with as many bare
// reflectors that have the plugin's bound on the watches that begin at once. Either has an
// API server of its own, and a third one has no clients.
func runRecovery(ctx context.Context, l *lab) error {
	for _, load := range recoveryLoads(l.bench.short) {
		if err := l.recoverUnder(ctx, load); err != nil {
			return fmt.Errorf("%s: %w", load, err)
		}
	}
	return nil
}

// recoverUnder has the clients, the references, and none at all go through a load's disruptions.
func (l *lab) recoverUnder(ctx context.Context, load recoveryLoad) error {
	load.states = 1 // of the steady updates
	for _, u := range load.all {
		load.states += u.rounds
	}
	// Without clients there is nothing to see of a start.
	unattended := slices.DeleteFunc(slices.Clone(load.all), func(u disruption) bool { return u.name == startName })
	var sides [3]*recovery
	for i, of := range []struct {
		name  string
		nodes int
		all   []disruption
		fleet makeFleet
	}{
		{"alone", 0, unattended, noFleet},
		{"reference", load.nodes, load.all, newReferences(load.reference)},
		{"refvol", load.nodes, load.all, newPlugins},
	} {
		sides[i] = &recovery{name: load.String() + " " + of.name, load: load, episodes: map[string]episodes{}}
		sides[i].load.nodes = of.nodes
		if err := sides[i].run(ctx, l, of.all, of.fleet); err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
	}
	return l.reportRecovery(load, sides[0], sides[1], sides[2])
}

// recovery is an API server with its clients.
type recovery struct {
	*lab
	// name is of the load and the side.
	name  string
	load  recoveryLoad
	fleet fleet
	count *handshakes
	// state is what the objects are in, once all are written.
	state    int
	episodes map[string]episodes
	// steady is from the request of an update until a copy shows it; lost are
	// copies that never did.
	steady []time.Duration
	lost   int
}

// run has the clients go through all disruptions.
func (r *recovery) run(ctx context.Context, l *lab, all []disruption, newFleet makeFleet) (err error) {
	if len(all) == 0 {
		return nil
	}
	id := strings.ReplaceAll(r.name, " ", "-")
	if r.lab, err = l.bench.newLab(ctx, scenario{id: r.load.figure + "-" + id}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.create(ctx, r.load.followed(), always("before")); err != nil {
		return err
	}
	if r.count, err = newHandshakes(r.Port()); err != nil {
		return err
	}
	r.onEnd(r.count.close)
	r.state = -1
	if r.fleet, err = newFleet(ctx, r.lab, r.load.nodesLoad); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.fleet.close()) }()
	for _, u := range all {
		for range u.rounds {
			if err := r.disrupt(ctx, u); err != nil {
				return fmt.Errorf("%s: %w", u.name, err)
			}
		}
	}
	if !r.load.steady {
		return nil
	}
	// Last, so that it shows whether anything was left behind.
	return r.updateSlowly(ctx)
}

// disrupt takes the figures of one disruption.
func (r *recovery) disrupt(ctx context.Context, u disruption) error {
	if err := u.prepare(ctx, r); err != nil {
		return err
	}
	server := r.APIServerPID()
	before, err := r.bill(ctx)
	if err != nil {
		return err
	}
	asked := r.observe(ctx, before.requests)
	defer asked.stop()
	began, ready, err := u.cause(ctx, r)
	if err != nil {
		return err
	}
	written := time.Now()
	if err := r.await(ctx, patience); err != nil {
		return err
	}
	last, err := r.lastArrival(ctx, written)
	if err != nil {
		return err
	}
	if err := harness.Poll(ctx, patience, time.Second, r.allWatched(ctx)); err != nil {
		return err
	}
	asked.stop()
	after, err := r.bill(ctx)
	if err != nil {
		return err
	}
	var restarted time.Time
	if server != r.APIServerPID() {
		before = bill{handshakes: before.handshakes} // another process, which counts from 0
		restarted = began
	}
	p := episode{
		current: last.Sub(began).Seconds(), ready: ready.Seconds(), bill: after.since(before),
		health: asked.health(restarted, began.Add(ready)),
	}
	logf(r.out, "  %s, %s: %s", r.name, u.name, p)
	r.episodes[u.name] = append(r.episodes[u.name], p)
	return nil
}

// allWatched returns a function that fails unless each client watches each object once.
func (r *recovery) allWatched(ctx context.Context) func() error {
	return func() error { return r.watched(ctx, r.load.watched()) }
}

// writeAll puts all objects into the next state. It goes on until that is done, as
// the API server may have come back a moment ago.
func (r *recovery) writeAll(ctx context.Context) error {
	r.state++
	return inParallel(r.load.objects, 8, func(i int) error {
		return harness.Poll(ctx, patience, 100*time.Millisecond, func() error {
			return r.update(ctx, objectName(i), state(r.state))
		})
	})
}

// await waits until all copies are current.
func (r *recovery) await(ctx context.Context, timeout time.Duration) error {
	return awaitState(ctx, r.fleet, r.load.nodesLoad, r.state, timeout)
}

// lastArrival returns when the last copy became current, but not a moment before since.
func (r *recovery) lastArrival(ctx context.Context, since time.Time) (time.Time, error) {
	all, err := r.fleet.arrivals(ctx, r.state)
	last := since
	for _, copies := range all {
		for _, at := range copies {
			if at.After(last) {
				last = at
			}
		}
	}
	return last, err
}

// updateSlowly updates the objects one after the other.
func (r *recovery) updateSlowly(ctx context.Context) error {
	r.state++
	sent, err := r.updateSteadily(ctx, r.load.objects, steadyInterval, func(i int) (object, value string) { return objectName(i), state(r.state) })
	if err != nil {
		return err
	}
	late := r.await(ctx, soon)
	if r.lost, err = lacking(ctx, r.fleet, r.state); err != nil {
		return err
	}
	r.steady, err = delays(ctx, r.fleet, r.state, sent)
	return errors.Join(late, err)
}

// reportRecovery reports what an API server's clients took, beside what the others did.
func (l *lab) reportRecovery(load recoveryLoad, alone, reference, ours *recovery) error {
	for _, u := range load.all {
		l.reportDisruption(load, u, alone.episodes[u.name], reference.episodes[u.name], ours.episodes[u.name])
	}
	if !load.steady {
		return nil
	}
	prefix := load.prefix("steady")
	l.report.Value(prefix+"lost", "updates", float64(ours.lost))
	return errors.Join(
		l.report.Samples(prefix+"ms", "ms", measure.Milliseconds(ours.steady)),
		l.report.Samples(prefix+"reference_ms", "ms", measure.Milliseconds(reference.steady)))
}
