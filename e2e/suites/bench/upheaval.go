package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// upheaval is something after which the clients of an API server have to recover.
type upheaval struct {
	name   string
	rounds int
	// prepare is what the figures leave out.
	prepare func(context.Context, *recovery) error
	// cause brings it about; all objects are in the next state when it returns. It returns
	// when the clients could begin to recover, and how long the API server took from then
	// until it was ready.
	cause func(context.Context, *recovery) (began time.Time, ready time.Duration, err error)
}

// starting has the clients start after the objects have changed.
func starting(l *lab) upheaval {
	return upheaval{"start", scaled(l, 1, 3), endClients, startClients}
}

// endClients ends the clients and has all objects change.
func endClients(ctx context.Context, r *recovery) error {
	if err := r.fleet.stop(); err != nil {
		return err
	}
	// The API server may take a while to notice.
	err := harness.Poll(ctx, patience, 100*time.Millisecond, func() error { return r.watched(ctx, 0) })
	if err != nil {
		return err
	}
	return r.writeAll(ctx)
}

func startClients(ctx context.Context, r *recovery) (began time.Time, ready time.Duration, err error) {
	began = time.Now()
	return began, 0, r.fleet.start(ctx)
}

func nothing(context.Context, *recovery) error { return nil }

// faults are those of the API server and of etcd.
func faults(l *lab) []upheaval {
	all := []upheaval{{"killed", scaled(l, 1, 3), nothing, restartServer}}
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
		all = append(all, upheaval{fmt.Sprintf("%s_%ds", s.what, s.long), 1, nothing, stalling(s.of, lasts)})
	}
	return all
}

// restartServer kills the API server and starts it again.
func restartServer(ctx context.Context, r *recovery) (began time.Time, ready time.Duration, err error) {
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
