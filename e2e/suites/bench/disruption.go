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

// disruption is something after which the clients of an API server have to recover.
type disruption struct {
	name   string
	rounds int
	// prepare is what the figures leave out.
	prepare func(context.Context, *recovery) error
	// cause brings it about; all objects are in the next state when it returns. It returns
	// when the clients could begin to recover, and how long the API server took from then
	// until it was ready.
	cause func(context.Context, *recovery) (began time.Time, ready time.Duration, err error)
}

// The names of a start of the clients, and of one of the API server after its end.
const (
	startName  = "start"
	killedName = "killed"
)

// repeats is how often a disruption of which the figures are medians is brought about.
func repeats(short bool) int {
	if short {
		return 1
	}
	return 3
}

// starting has the clients start after the objects have changed.
func starting(short bool) disruption {
	return disruption{startName, repeats(short), endClients, startClients}
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
func faults(short bool) []disruption {
	all := []disruption{{killedName, repeats(short), nothing, restartServer}}
	for _, s := range []struct {
		what string
		of   func(*controlplane.ControlPlane) int
		long int
	}{
		{"stalled", (*controlplane.ControlPlane).APIServerPID, 8},
		{"stalled", (*controlplane.ControlPlane).APIServerPID, 30},
		{"etcd_stalled", (*controlplane.ControlPlane).EtcdPID, 10},
	} {
		lasts := time.Duration(s.long) * time.Second
		if short {
			lasts = 100 * time.Millisecond
		}
		all = append(all, disruption{fmt.Sprintf("%s_%ds", s.what, s.long), 1, nothing, stalling(s.of, lasts)})
	}
	return all
}

// restartServer kills the API server and starts it again.
func restartServer(ctx context.Context, r *recovery) (began time.Time, ready time.Duration, err error) {
	if err := r.StopAPIServer(); err != nil {
		return began, 0, err
	}
	if began, ready, err = startServer(ctx, r); err != nil {
		return began, 0, err
	}
	return began, ready, r.writeAll(ctx)
}

// startServer returns when the API server was started, and after what time it was ready.
func startServer(ctx context.Context, r *recovery) (began time.Time, ready time.Duration, err error) {
	began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = r.StartAPIServer(ctx)
	return began, time.Since(began), err
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

// recoveryGoals are those of each disruption under each load.
func recoveryGoals() []measure.Goal {
	var goals []measure.Goal
	for _, load := range append(recoveryLoads(false), rehearsalLoad(false)) {
		if load.steady {
			goals = append(goals, measure.Goal{Scenario: load.scenario, Result: load.prefix("steady") + "lost", Figure: "value"})
		}
		for _, u := range load.all {
			for _, g := range []struct {
				name string
				most float64
			}{{"ratio", 2}, {"handshakes", float64(load.objects)/100 + 20}, {"refused_added", 0}} {
				goals = append(goals, measure.Goal{Scenario: load.scenario, Result: load.prefix(u.name) + g.name, Figure: "value", Most: g.most})
			}
		}
	}
	return goals
}
