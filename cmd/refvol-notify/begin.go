package main

import (
	"context"
	"slices"
	"time"
)

// holds is for how long the start of the containers is held for variables that are known to be old, before each try. After
// them the application runs with these, and the restart is tried again later.
func holds() []time.Duration {
	return []time.Duration{250 * time.Millisecond, time.Second, 3 * time.Second}
}

// begin notes what the containers start with, before they do.
func (n *notifier) begin(ctx context.Context, now files) error {
	if n.state.Because != "" {
		n.log.Info("restarted the containers", "changed", n.state.Because, "restarts", n.state.Done)
	}
	n.began = true
	if n.env != nil {
		if err := n.compare(ctx, now); err != nil {
			return err
		}
	}
	n.state.Running, n.state.Old, n.state.Because = now, nil, ""
	n.save(n.state)
	return nil
}

// compare judges this process's variables by the file want. It returns an exitError to start anew; nothing else has started.
func (n *notifier) compare(ctx context.Context, now files) error {
	names, _, is, err := n.env.differing()
	if n.note("can't compare the variables with the file: its next change restarts", err) {
		return nil
	}
	now[n.want()] = is
	tries := n.state.Tries
	switch {
	case len(names) == 0:
		n.state.Tries, n.state.Equal = 0, true
	case !n.env.stillHas(n.state.Old):
		n.state.Tries, n.state.DoubtEndsAt = 0, time.Now().Add(n.patience)
		n.log.Info("variables differ from the file: waits for it", "variables", brief(names), "longest", n.patience)
	case tries < len(holds()):
		n.state.OldEnvironments++
		n.log.Warn("the kubelet started this container with old variables: starts again", "variables", brief(names), "try", tries+1)
		if err := pause(ctx, holds()[tries]); err != nil {
			return err
		}
		next := n.state
		next.Tries, next.Because = tries+1, ""
		if n.save(next) {
			return nil // else it would start again for ever
		}
		return &exitError{n.exitCode}
	default:
		n.state.OldEnvironments++
		n.state.Tries++
		again := backoff(firstBackoff, tries-len(holds()), longestBackoff)
		n.state.DoubtEndsAt = time.Now().Add(again)
		n.log.Error("the kubelet starts containers with old variables: the application runs with them", "variables", brief(names), "restartsIn", again)
	}
	return nil
}

// changed returns the names of files that the containers have to be told of. While it is open whether the variables or the
// file are newer, want is none.
func (n *notifier) changed(now files) []string {
	changed := differences(n.state.Running, now)
	if n.state.DoubtEndsAt.IsZero() {
		return changed
	}
	want := n.want()
	if n.began { // else these are not the variables of the containers
		names, _, is, err := n.env.differing()
		if err == nil && len(names) == 0 {
			n.state.Running[want], n.state.Equal, n.state.DoubtEndsAt, n.state.Tries = is, true, time.Time{}, 0
			n.save(n.state)
			return differences(n.state.Running, now)
		}
	}
	changed = slices.DeleteFunc(changed, func(name string) bool { return name == want })
	if !time.Now().Before(n.state.DoubtEndsAt) {
		changed = append(changed, want)
	}
	return changed
}

// apply opens the file applied once the containers have started with its variables.
func (n *notifier) apply() {
	if n.env != nil && n.state.Equal && n.m.isProbed() {
		n.note("can't open the file applied: nothing says that its variables are in use", n.env.openApplied(n.state.Running[n.want()]))
	}
}
