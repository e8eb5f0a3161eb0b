package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/pkg/health"
)

const (
	// healthPause is the shortest pause between two looks at the pods. surveyPause is the shortest pause between two questions to all plugins
	// while a step is watched.
	healthPause = 2 * time.Second
	surveyPause = 20 * time.Second
)

// stopError says that too many pods are unhealthy.
type stopError struct {
	verdict health.Verdict
}

func (e *stopError) Error() string {
	return fmt.Sprintf("unhealthy pods that have the change: %d", len(e.verdict.Unhealthy))
}

// judge returns a stopError if more pods are unhealthy than --max-unhealthy.
func (r *roller) judge() error {
	v := r.watch.Verdict(r.last.at)
	if len(v.Unhealthy) > r.maxUnhealthy.of(v.Takers) {
		return &stopError{v}
	}
	return nil
}

// observe returns nil if the pods that have the change are well for --every. If more than half of them are replaced meanwhile, the time begins
// anew. It waits for pods of which it is not known yet whether they are well.
func (r *roller) observe(ctx context.Context, to int) error {
	known, began := r.watch.Begin(), time.Now()
	limit := began.Add(r.every + r.timeout + r.unreadyFor) // a pod that was ill must be ready for --unready-for
	v := r.watch.Verdict(r.last.at)
	isLost := v.Takers > 0 && known == 0
	if v.Takers == 0 {
		r.calls.say("%s: %s: no pod that was well before has the change", r.names(), share(to))
	} else {
		r.calls.say("%s: %s: watching for %s (pods with the change: %d)", r.names(), share(to), r.every, v.Takers)
	}
	for {
		pause(ctx, max(healthPause, r.last.took))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.lookAgain(ctx)
		now := time.Now()
		switch {
		case err != nil && isAnswer(err):
			return err
		case err != nil && now.After(limit):
			return fmt.Errorf("%s: stays at %s: whether the pods are well isn't known: %w", r.names(), share(to), err)
		case err != nil:
			r.calls.warn(err)
			continue
		}
		if r.judge() != nil { // ask again which nodes are ready before anything is taken back
			if err := r.look(ctx); err != nil {
				r.calls.warn(err)
				continue
			}
			if err := r.judge(); err != nil {
				return err
			}
		}
		if err := r.runCheck(ctx, to); err != nil {
			return err
		}
		v := r.watch.Verdict(r.last.at)
		isLost = isLost || v.Lost
		switch {
		case now.After(limit) && (isLost || len(v.Undecided) > 0):
			return fmt.Errorf("%s: stays at %s: whether the change is good isn't known: the pods that have it are replaced again and again, or are on nodes that are not ready, or are not ready, or not for long enough (%s): run the command again",
				r.names(), share(to), cmp.Or(few(v.Undecided), "none is known"))
		case isLost:
			if v.Lost {
				r.calls.say("%s: %s: more than half of the pods that have the change are replaced, drained, or on nodes that are not ready: watching anew", r.names(), share(to))
				if err := r.look(ctx); err != nil { // the new pods
					r.calls.warn(err)
					continue
				}
			}
			began, isLost = now, r.watch.Begin() == 0
		case now.Sub(began) >= r.every && len(v.Undecided) == 0:
			return nil
		}
	}
}

// stopped does what --on-failure says, and returns the command's error.
func (r *roller) stopped(ctx context.Context, stop *stopError) error {
	r.calls.say("%s: these pods have the change, and are unhealthy:", r.names())
	for _, f := range stop.verdict.Unhealthy {
		r.calls.say("  pod %s %s (since %s)", f.Name, f.What, f.Since.UTC().Format(time.RFC3339))
	}
	if !r.now[0].isCanary || r.onFailure == keepCanary {
		r.tell(ctx, eventStopped, "%v; the share stays at %s", stop, share(r.now[0].percent()))
	}
	if !r.now[0].isCanary {
		return &statusError{fmt.Errorf("%s: stopped: %w. The share stays, so that these pods can take a revert. Write the old values back, and then run: %s. "+
			"Pods that have started meanwhile keep the bad values until then", r.names(), stop, r.commandTo(100)), no}
	}
	defer r.sayStable(ctx)
	if r.onFailure == keepCanary {
		return &statusError{fmt.Errorf("%s: stopped: %w. The share stays. To take the canary back, run: %s", r.names(), stop, r.commandTo(0)), no}
	}
	ctx, cancel := r.deadline(ctx)
	defer cancel()
	var errs []error
	for i := range r.objects {
		errs = append(errs, r.takeBack(ctx, i))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: stopped: %w, and a canary could not be taken back: run: %s: %w", r.names(), stop, r.commandTo(0), err)
	}
	r.tell(ctx, eventReverted, "%v; the share is 0%% again", stop)
	return &statusError{fmt.Errorf("%s: stopped, and taken back to 0%%: %w", r.names(), stop), no}
}

// takeBack sets a canary to 0%, whatever else was changed of it meanwhile. It tries until ctx ends. A canary that is gone needs nothing.
func (r *roller) takeBack(ctx context.Context, i int) error {
	for {
		state, err := r.calls.state(ctx, r.objects[i])
		switch {
		case err != nil:
		case state == nil, state.isCanary && state.percent() == 0:
			return nil
		default:
			state.isCanary = true
			if state, err = r.calls.set(ctx, r.objects[i], state, share(0), nil); err == nil {
				r.now[i] = state
				return nil
			}
		}
		if isRefusal(err) || ctx.Err() != nil {
			return err
		}
		r.calls.warn(err)
		pause(ctx, healthPause)
	}
}
