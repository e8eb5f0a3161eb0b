package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"
)

const (
	longestSettle = 10 * time.Second
	// pollEvery is how often the files are read if it is known that the kernel reports nothing, or if they can't be read.
	pollEvery = time.Second
	// longestRetry is the longest pause before a failed action is tried again.
	longestRetry = 5 * time.Minute
)

// notifier acts on changes. Some of its functions are fields, so that tests can replace time and files.
type notifier struct {
	*options
	log  *slog.Logger
	look func() (files, error)
	act  func(ctx context.Context) error
	// wait waits for a time, or until something may have changed.
	wait func(ctx context.Context, longest time.Duration) error
	m    *monitor
	env  *environment // nil without --env

	state state
	// began means that this process started together with the containers, so that they have the same variables.
	began bool

	// The burst: the files that were seen last, when they were seen, and when the first change came.
	seen            files
	firstAt, lastAt time.Time
	// A failed action is retried at retryAt.
	failures int
	retryAt  time.Time
	// said has the last error of each kind, so that it is logged once.
	said map[string]string
}

func newNotifier(o *options, log *slog.Logger, m *monitor, w *watcher) *notifier {
	n := &notifier{options: o, log: log, m: m, said: map[string]string{}}
	n.look = func() (files, error) { return look(o, w.add) }
	n.act = func(ctx context.Context) error { return act(ctx, o) }
	n.wait = w.wait
	if o.env != "" {
		n.env = newEnvironment(o.env, o.envPrefix, os.Environ())
	}
	return n
}

// run acts on changes until ctx ends or an action ends this process.
func (n *notifier) run(ctx context.Context) error {
	var err error
	n.state, err = loadState(n.options.state)
	n.logOnce("what the containers run with is unknown: the files that are there count", err)
	for {
		longest := pollEvery
		now, err := n.look()
		n.logOnce("can't look at the files: tries again each second", err)
		if err == nil {
			if longest, err = n.step(ctx, now); err != nil {
				return err
			}
		}
		n.m.set(n.isPending(), n.hasOldVariables(), n.state.counts) // also after an error: the application must be able to start
		if !n.m.isStarting() {
			longest = min(longest, pollEvery)
		} else if n.env != nil && n.state.Equal {
			n.logOnce("can't open the file applied: nothing says that its variables are in use", n.env.openApplied(n.state.Running[n.want()]))
		}
		if err := n.wait(ctx, longest); err != nil {
			return err
		}
	}
}

// step acts on changes if it is time. It returns when to look again at the latest.
func (n *notifier) step(ctx context.Context, now files) (time.Duration, error) {
	switch isFirst := n.seen == nil; {
	case !isFirst:
	case n.exitCode != 0 && !n.m.hasStarted, n.exitCode == 0 && n.state.Running == nil:
		if err := n.begin(ctx, now); err != nil {
			return 0, err
		}
	case n.state.Running == nil && n.state.Because == "":
		n.resume(now)
	case n.state.Running == nil: // the restart was noted, and did not happen
		n.state.Running = files{}
	}
	if n.seen == nil {
		if n.options.state == "" {
			n.log.Warn("without --state, a change while this container is away will not be noticed")
		}
		n.log.Info("watches", "dirs", firstNames(n.watched()), "files", len(now), "action", n.action())
	}
	n.observe(now)
	changed := n.changed(now)
	if len(changed) == 0 {
		n.firstAt = time.Time{}
		if ends := n.state.DoubtEndsAt; !ends.IsZero() {
			return min(n.poll, time.Until(ends)), nil
		}
		return n.poll, nil
	}
	if wait := time.Until(n.dueAt()); wait > 0 {
		return min(n.poll, wait), nil
	}
	return 0, n.actOn(ctx, now, changed)
}

// observe records the start and the end of a burst. A new change is acted on without waiting for a retry.
func (n *notifier) observe(now files) {
	if n.seen != nil && len(differences(n.seen, now)) == 0 {
		return
	}
	n.seen, n.lastAt = now, time.Now()
	if n.firstAt.IsZero() {
		n.firstAt = n.lastAt
	}
	n.failures, n.retryAt = 0, time.Time{}
}

func (n *notifier) dueAt() time.Time {
	due := n.lastAt.Add(n.settle)
	if latest := n.firstAt.Add(longestSettle); !n.firstAt.IsZero() && latest.Before(due) {
		due = latest
	}
	if n.exitCode != 0 {
		due = later(due, n.state.nextRestartAt(time.Now()))
	}
	return later(due, n.retryAt)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (n *notifier) isPending() bool {
	return n.state.Running != nil && n.seen != nil && len(differences(n.state.Running, n.seen)) > 0
}

// hasOldVariables reports whether containers are known to run with variables that are older than the file's. While nobody knows which are newer,
// as in a pod that has started while its volume is held, they are not.
func (n *notifier) hasOldVariables() bool {
	if n.env == nil || n.seen == nil {
		return false
	}
	return n.state.Newer || n.state.Equal && n.state.Running[n.want()] != n.seen[n.want()]
}

// actOn acts on changes and records that.
func (n *notifier) actOn(ctx context.Context, now files, changed []string) error {
	if n.failures == 0 {
		n.state.Changes++
		n.state.LastChangeAt = time.Now()
	}
	begin := time.Now()
	err := n.act(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var end *exitError
	restarts := errors.As(err, &end)
	if restarts {
		err = n.noteRestart(changed)
	}
	if err != nil {
		n.recordFailure(err)
		return nil
	}
	n.state.Done++
	n.log.Info("acted", "action", n.action(), "changed", firstNames(changed), "took", time.Since(begin).Round(time.Millisecond))
	n.failures, n.retryAt, n.firstAt = 0, time.Time{}, time.Time{}
	n.logOnce("the action failed: tries again", nil)
	if restarts {
		return end
	}
	n.state.Running = now
	n.save(n.state)
	return nil
}

func (n *notifier) recordFailure(err error) {
	n.state.Failed++
	n.failures++
	n.retryAt = time.Now().Add(backoff(time.Second, n.failures-1, longestRetry))
	n.logOnce("the action failed: tries again", err)
}

// noteRestart records for the next process that the containers restart. If that fails, they must not restart.
func (n *notifier) noteRestart(changed []string) error {
	next := n.state
	next.Running, next.Because, next.Equal, next.DoubtEndsAt, next.Old = nil, firstNames(changed), false, time.Time{}, nil
	next.InRow, next.LastAt = n.state.InRow+1, time.Now()
	next.Done++
	if n.env != nil && slices.Contains(changed, n.want()) {
		if c, err := n.env.compare(); err == nil {
			next.Old, next.Newer = n.env.mark(c.all), n.state.Newer || n.state.Equal
		}
	}
	return next.save(n.options.state)
}

// logOnce logs an error, once until it changes, and reports whether there is one.
func (n *notifier) logOnce(what string, err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if n.said[what] != text && text != "" {
		n.log.Error(what, "err", text)
	}
	n.said[what] = text
	return text != ""
}

// save reports whether saving failed.
func (n *notifier) save(s state) bool {
	return n.logOnce("a restart of this container will not know of this", s.save(n.options.state))
}

// wait waits for a notification from the kernel.
func (w *watcher) wait(ctx context.Context, longest time.Duration) error {
	if !w.isWorking() {
		longest = min(longest, pollEvery)
	}
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-w.wake:
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
