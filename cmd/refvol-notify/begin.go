package main

import (
	"context"
	"slices"
	"time"
)

// startDelays returns how long the start of the containers is delayed before each try if variables are known to be old. After that the
// application starts with the old variables, and the restart is retried later.
func startDelays() []time.Duration {
	return []time.Duration{250 * time.Millisecond, time.Second, 3 * time.Second}
}

// begin records what the containers start with, before they start.
func (n *notifier) begin(ctx context.Context, now files) error {
	if n.state.Because != "" {
		n.log.Info("restarted the containers", "changed", n.state.Because, "restarts", n.state.Done)
	}
	n.began = true
	n.state.Equal, n.state.DoubtEndsAt = false, time.Time{}
	if n.env != nil {
		if err := n.compare(ctx, now); err != nil {
			return err
		}
	}
	n.state.Running, n.state.Old, n.state.Because = now, nil, ""
	n.save(n.state)
	return nil
}

// resume begins beside containers that run with unknown files and variables. The files that are there count, and unknown variables are replaced
// by a restart.
func (n *notifier) resume(now files) {
	n.state.Running = now
	if n.env != nil {
		n.state.DoubtEndsAt = time.Now().Add(n.patience)
	}
	n.save(n.state)
}

// compare compares this process's variables with the file want. It returns an exitError to restart this container before any other
// container starts.
func (n *notifier) compare(ctx context.Context, now files) error {
	c, err := n.env.compare()
	if n.logOnce("can't compare the variables with the file: its next change restarts", err) {
		return nil
	}
	now[n.want()] = c.is
	names, tries := c.differing, n.state.Tries
	switch {
	case len(names) == 0:
		n.state.Tries, n.state.Newer, n.state.Equal = 0, false, true
	case !n.env.hasMarked(n.state.Old):
		n.state.Tries, n.state.Newer, n.state.DoubtEndsAt = 0, false, time.Now().Add(n.patience)
		n.log.Info("variables differ from the file: waits for it", "variables", firstNames(names), "longest", n.patience)
	case !n.state.Newer && n.state.Retried != c.is: // the kubelet may be later than --patience
		n.state.Retried, n.state.DoubtEndsAt = c.is, time.Now().Add(longestBackoff)
		n.log.Warn("a restart did not change the variables, which differ from the file", "variables", firstNames(names), "restartsIn", longestBackoff)
	case !n.state.Newer:
		n.log.Warn("a restart did not change the variables, which differ from the file: waits for the file", "variables", firstNames(names))
	case tries < len(startDelays()):
		n.state.OldEnvironments++
		n.log.Warn("the kubelet started this container with old variables: restarting", "variables", firstNames(names), "try", tries+1)
		if err := pause(ctx, startDelays()[tries]); err != nil {
			return err
		}
		next := n.state
		next.Running, next.Tries, next.Because = nil, tries+1, ""
		if n.save(next) { // otherwise it would restart without end
			n.state.DoubtEndsAt = time.Now().Add(firstBackoff)
			return nil
		}
		return &exitError{n.exitCode}
	default:
		n.state.OldEnvironments++
		n.state.Tries++
		again := backoff(firstBackoff, tries-len(startDelays()), longestBackoff)
		n.state.DoubtEndsAt = time.Now().Add(again)
		n.log.Error("the kubelet starts containers with old variables: the application runs with them", "variables", firstNames(names), "restartsIn", again)
	}
	return nil
}

// changed returns the names of the changed files that the application has not been notified of. While it is not known whether the variables
// or the file want is newer, want does not count.
func (n *notifier) changed(now files) []string {
	changed := differences(n.state.Running, now)
	want, isDoubtful := n.want(), !n.state.DoubtEndsAt.IsZero()
	if !isDoubtful && (n.env == nil || !slices.Contains(changed, want)) {
		return changed
	}
	c, err := n.env.compare()
	if n.began && err == nil && len(c.differing) == 0 { // if this process has not begun with the containers, these are not their variables
		now[want] = c.is // the file may be newer than the look
		n.state.Running[want], n.state.Equal, n.state.DoubtEndsAt, n.state.Tries, n.state.Newer = c.is, true, time.Time{}, 0, false
		n.save(n.state)
		return differences(n.state.Running, now)
	}
	if !isDoubtful {
		return changed
	}
	changed = slices.DeleteFunc(changed, func(name string) bool { return name == want })
	if !time.Now().Before(n.state.DoubtEndsAt) {
		changed = append(changed, want)
	}
	return changed
}
