package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/bench/measure"
	"github.com/refvol/refvol/e2e/controlplane"
	"github.com/refvol/refvol/e2e/harness"
)

// upheaval is something after which the clients of an API server have to recover.
type upheaval struct {
	name   string
	rounds int
	// cause brings it about, and has all objects be in the next state when it returns. It
	// returns when the clients could begin to recover, and how long the API server took
	// from then until it was ready.
	cause func(context.Context, *recovery) (began time.Time, ready time.Duration, err error)
}

// starting has the clients end, the objects change, and the clients start.
func starting(l *lab) upheaval {
	return upheaval{"start", scaled(l, 1, 3), func(ctx context.Context, r *recovery) (began time.Time, _ time.Duration, err error) {
		if err := r.fleet.stop(); err != nil {
			return began, 0, err
		}
		// The API server may take a while to notice.
		err = harness.Poll(ctx, patience, 100*time.Millisecond, func() error { return r.watched(ctx, 0) })
		if err := errors.Join(err, r.writeAll(ctx)); err != nil {
			return began, 0, err
		}
		began = time.Now()
		return began, 0, r.fleet.start(ctx)
	}}
}

// faults are those of the API server and of etcd.
func faults(l *lab) []upheaval {
	all := []upheaval{{"killed", scaled(l, 1, 3), kill}}
	for _, s := range []struct {
		what string
		of   func(*controlplane.ControlPlane) int
		long int
	}{
		{"stalled", (*controlplane.ControlPlane).APIServerPID, 8},
		{"stalled", (*controlplane.ControlPlane).APIServerPID, 30},
		{"etcd_stalled", (*controlplane.ControlPlane).EtcdPID, 10},
	} {
		lasts := scaled(l, 100*time.Millisecond, time.Duration(s.long)*time.Second)
		all = append(all, upheaval{fmt.Sprintf("%s_%ds", s.what, s.long), 1, stalling(s.of, lasts)})
	}
	return all
}

// kill kills the API server and starts it again.
func kill(ctx context.Context, r *recovery) (began time.Time, ready time.Duration, err error) {
	if err := r.StopAPIServer(); err != nil {
		return began, 0, err
	}
	began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := r.StartAPIServer(ctx); err != nil {
		return began, 0, err
	}
	ready = time.Since(began)
	return began, ready, r.writeAll(ctx)
}

// stalling stops a process for a while: its connections stay, and nothing answers on them.
func stalling(pid func(*controlplane.ControlPlane) int, lasts time.Duration) func(context.Context, *recovery) (time.Time, time.Duration, error) {
	return func(ctx context.Context, r *recovery) (time.Time, time.Duration, error) {
		id := pid(r.ControlPlane)
		if err := unix.Kill(id, unix.SIGSTOP); err != nil {
			return time.Time{}, 0, os.NewSyscallError("kill", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lasts):
		}
		began := time.Now()
		if err := unix.Kill(id, unix.SIGCONT); err != nil {
			return began, 0, os.NewSyscallError("kill", err)
		}
		return began, 0, r.writeAll(ctx)
	}
}

// reportUpheaval reports the passages of the three sides through one upheaval: medians of
// times, and of all else the most.
func (l *lab) reportUpheaval(load recoveryLoad, u upheaval, alone, reference, ours []passage) {
	prefix := fmt.Sprintf("recovery.%s_%s_", load, u.name)
	value := func(name, unit string, v float64) { l.report.Value(prefix+name, unit, v) }
	most := func(all []passage, of func(passage) int) float64 {
		return float64(of(slices.MaxFunc(all, func(a, b passage) int { return of(a) - of(b) })))
	}
	middle := func(all []passage, of func(passage) float64) float64 {
		var figures []float64
		for _, p := range all {
			figures = append(figures, of(p))
		}
		return median(figures)
	}
	current := func(p passage) float64 { return p.current }
	value("ratio", "ratio", middle(ours, current)/middle(reference, current))
	if u.name == "killed" {
		ready := func(p passage) float64 { return p.ready }
		value("ready_s", "s", middle(ours, ready))
		value("reference_ready_s", "s", middle(reference, ready))
		value("alone_ready_s", "s", middle(alone, ready))
	}
	// What the bench and the API server itself take part in is there without clients too.
	own := passage{}
	if u.name != "start" {
		own = alone[0]
		value("alone_s", "s", middle(alone, current))
	}
	for _, side := range []struct {
		name string
		all  []passage
	}{{"", ours}, {"reference_", reference}} {
		handshakes := most(side.all, func(p passage) int { return p.handshakes - own.handshakes })
		requests := most(side.all, func(p passage) int { return p.requests - own.requests })
		value(side.name+"s", "s", middle(side.all, current))
		value(side.name+"handshakes", "handshakes of a node", handshakes/float64(load.nodes))
		value(side.name+"requests", "requests", requests)
		value(side.name+"requests_per_s", "requests/s", middle(side.all, func(p passage) float64 {
			return float64(p.requests-own.requests) / p.current
		}))
		value(side.name+"refused", "requests", most(side.all, func(p passage) int { return p.refused }))
	}
	refused := func(p passage) int { return p.refused }
	value("refused_added", "requests", most(ours, refused)-most(reference, refused))
}

// recoveryGoals are those of each upheaval under each load.
func recoveryGoals() []measure.Goal {
	var goals []measure.Goal
	l := &lab{bench: &bench{}}
	for _, load := range recoveryLoads(false) {
		all := []upheaval{starting(l)}
		if load.faults {
			all = append(all, faults(l)...)
			goals = append(goals, measure.Goal{
				Scenario: "B12", Result: fmt.Sprintf("recovery.%s_steady_lost", load), Figure: "value",
			})
		}
		for _, u := range all {
			for _, g := range []struct {
				name string
				most float64
			}{{"ratio", 2}, {"handshakes", float64(load.objects)/100 + 20}, {"refused_added", 0}} {
				goals = append(goals, measure.Goal{
					Scenario: "B12", Result: fmt.Sprintf("recovery.%s_%s_%s", load, u.name, g.name), Figure: "value", Most: g.most,
				})
			}
		}
	}
	return goals
}
