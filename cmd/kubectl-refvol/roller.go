package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/health"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// roller gives changes of objects, or canary objects, to more and more pods. It is used for one call of roll.
type roller struct {
	rolloutOptions
	objects []fleet.Object
	// byHand means that there is one step, and that the annotation stays at its share.
	byHand bool
	calls  rolloutCalls

	// now has the state of each object.
	now []*rolloutState
	// last is the last look, or nil. watch has seen all looks.
	last  *look
	watch *health.Watch
	// stable are the objects that volumes show beside a canary, at their first versions. 0% takes none of their changes back. nil means that the
	// version isn't known.
	stable map[fleet.Object]*status.Version
	// number is that of the step, from 1. checkFails is when the command of --check began to fail, or zero. cannotTell means that events can't be
	// written.
	number     int
	checkFails time.Time
	cannotTell bool
}

// rolloutCalls are what a roller asks of the cluster, and how it tells what it does.
type rolloutCalls struct {
	// state returns an object's state, or nil if the object doesn't exist. set changes it, and fails with a changedError if the object has
	// changed since the given state. After another error the change may have been made.
	state  func(context.Context, fleet.Object) (*rolloutState, error)
	set    func(ctx context.Context, object fleet.Object, from *rolloutState, share string, after *string) (*rolloutState, error)
	survey func(context.Context, ...fleet.Object) (*fleet.Survey, error)
	// pods returns the pods of a namespace.
	pods func(ctx context.Context, namespace string) ([]corev1.Pod, error)
	// event writes an event on an object. check runs the command of --check with some more variables.
	event func(ctx context.Context, object fleet.Object, version status.Version, reason, text string) error
	check func(ctx context.Context, env []string) error
	say   func(format string, args ...any)
	warn  func(error)
}

// roll returns nil when the last step has succeeded.
func (r *roller) roll(ctx context.Context, steps []rolloutStep) error {
	err := r.takeSteps(ctx, steps)
	var stop *stopError
	if errors.As(err, &stop) {
		return r.stopped(ctx, stop)
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: interrupted: the share stays, and the same command goes on from there: %w", r.names(), context.Cause(ctx))
	}
	return err
}

func (r *roller) takeSteps(ctx context.Context, steps []rolloutStep) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	if !r.byHand {
		r.tell(ctx, eventStarted, "%s gives it to more and more pods; its share is %s", rolloutManager, share(r.now[0].percent()))
	}
	last := 0
	for i, step := range steps {
		r.number = i + 1
		to := max(r.raise(step), r.present(step))
		if i > 0 && to <= last {
			r.calls.say("%s: %s has no more pods than the step before: left out", r.names(), step)
			continue
		}
		if step.pods == 0 && to > step.percent && to > r.present(step) {
			r.calls.say("%s: no pod that is well has a place up to %s: raised to %s", r.names(), step, share(to))
		}
		if err := r.step(ctx, to); err != nil {
			return err
		}
		last = to
	}
	if last < 100 {
		r.calls.say("%s: stays at %s", r.names(), share(last))
		return nil
	}
	return r.finish(ctx)
}

// begin finds out where the rollout is.
func (r *roller) begin(ctx context.Context) error {
	r.watch = health.New(health.Limits{Restarts: r.allowRestarts, Unready: r.unreadyFor, Start: r.timeout})
	deadline, cancel := r.deadline(ctx)
	defer cancel()
	for _, object := range r.objects {
		state, err := r.calls.state(deadline, object)
		if err != nil {
			return err
		}
		if state == nil {
			return &statusError{fmt.Errorf("%s does not exist", object), no}
		}
		r.now = append(r.now, state)
	}
	if err := r.lookWithRetry(deadline); err != nil {
		return err
	}
	if err := r.retry(deadline, r.findCanaries); err != nil {
		return err
	}
	if err := r.checkStates(); err != nil {
		return err
	}
	if names := r.watch.LeftOut(); len(names) > 0 {
		r.calls.say("%s: left out until they are ready, because they are not ready and don't have the change: %d pods: %s", r.names(), len(names), few(names))
	}
	for i, object := range r.objects {
		if len(r.last.places(object, nil)) > 0 {
			continue
		}
		if r.last.results[i].None {
			return &statusError{fmt.Errorf("no refvol volume shows %s: is it the right name and namespace?", object), none}
		}
		r.printLaggards(r.last.results[i].Laggards)
		return &statusError{fmt.Errorf("no volume that takes changes is known to show %s", object), none}
	}
	return nil
}

// checkStates fails if the annotations leave nothing to do, or if it isn't clear what.
func (r *roller) checkStates() error {
	i := slices.IndexFunc(r.now, func(s *rolloutState) bool { return s.isCanary })
	if i >= 0 && slices.ContainsFunc(r.now, func(s *rolloutState) bool { return !s.isCanary }) {
		return &usageError{fmt.Errorf("%s has the annotation %s, and not all objects have: roll out canary objects by themselves", r.objects[i], volume.CanaryAnnotation)}
	}
	for i, state := range r.now {
		switch {
		case r.last.survey.IsImmutable(r.objects[i]):
			return &statusError{fmt.Errorf("%s is immutable: no plugin asks for its annotation. Write the values to an object that is not", r.objects[i]), no}
		case state.isCanary && state.isHeld:
			return &statusError{fmt.Errorf("%s has both annotations, %s and %s: remove one of them", r.objects[i], volume.CanaryAnnotation, volume.RolloutAnnotation), no}
		}
		if _, isShare := volume.ParseShare(state.share); !isShare && !r.byHand && !state.isCanary {
			return &statusError{fmt.Errorf("%s: %s is %q, which is not a share, so all changes are held: set it with %s",
				r.objects[i], volume.RolloutAnnotation, state.share, r.commandTo(0)), no}
		}
	}
	if !r.byHand && !slices.ContainsFunc(r.now, func(s *rolloutState) bool { return s.isCanary || s.percent() < 100 || s.after != nil }) {
		return &statusError{fmt.Errorf("%s: nothing to do: without a share below 100%% in %s, all pods take each change. Hold the next one with %s",
			r.names(), volume.RolloutAnnotation, r.commandTo(0)), none}
	}
	return nil
}

// deadline returns the deadline of a step.
func (r *roller) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout, cause := r.timeout, fmt.Errorf("--timeout %s has passed", r.timeout)
	if r.last != nil && r.last.spread > timeout {
		timeout, cause = r.last.spread, fmt.Errorf("%s, the volumes' longest spread, has passed", r.last.spread)
	}
	return context.WithTimeoutCause(ctx, timeout, cause)
}

// raise returns the share of a step. It raises the share until each object has a pod in it that was well before, because otherwise nobody
// would try the change.
func (r *roller) raise(step rolloutStep) (percent int) {
	if step == (rolloutStep{}) {
		return 0
	}
	percent = step.percent
	for _, object := range r.objects {
		places := r.last.places(object, r.watch.IsLeftOut)
		if n := len(places); n > 0 {
			percent = max(percent, places[min(max(step.pods, 1), n)-1])
		}
	}
	return percent
}

// present returns the share that all objects have already: an interrupted run continues there. With --to it is 0.
func (r *roller) present(step rolloutStep) int {
	if r.byHand || step == (rolloutStep{}) {
		return 0
	}
	least := 100
	for _, state := range r.now {
		least = min(least, state.percent())
	}
	return least
}

func place(pod status.Pod) int { return volume.RolloutPlace(types.UID(pod.UID)) }

// step raises the objects to a share, waits until their volumes show the change, and watches the pods.
func (r *roller) step(ctx context.Context, to int) error {
	deadline, cancel := r.deadline(ctx)
	defer cancel()
	if err := r.lookWithRetry(deadline); err != nil {
		return err
	}
	if err := r.judge(); err != nil && !r.byHand {
		return err
	}
	for i, object := range r.objects {
		if nodes := r.last.survey.WithoutRollout(object); len(nodes) > 0 && to < 100 {
			return &statusError{fmt.Errorf("%s: the plugin of these nodes is of a release without %s, and gives the change to all pods at once: %s: upgrade it first",
				object, volume.RolloutAnnotation, strings.Join(nodes, ", ")), no}
		}
		if err := r.raiseObject(deadline, i, to); err != nil {
			return err
		}
	}
	if err := r.wait(deadline, to); err != nil || to == 0 {
		return err
	}
	return r.observe(ctx, to)
}

// raiseObject raises one object to a share.
func (r *roller) raiseObject(ctx context.Context, i, to int) error {
	now := r.now[i]
	after := now.after
	if !r.byHand {
		if present := now.percent(); present > to || present == to && (after != nil || now.isCanary) || present == 100 {
			r.calls.say("%s: is at %s already", r.objects[i], share(present))
			return nil
		}
		if after == nil && !now.isCanary {
			after = &now.share
		}
	}
	return r.set(ctx, i, share(to), after)
}

// set changes the annotations of an object. It tries until ctx ends, and reads the object after a failure, because the change may have been
// made although the request failed.
func (r *roller) set(ctx context.Context, i int, to string, after *string) error {
	from := r.now[i]
	for {
		state, err := r.calls.set(ctx, r.objects[i], from, to, after)
		if err != nil && !isAnswer(err) {
			r.calls.warn(err)
			pause(ctx, healthPause)
			found, readErr := r.calls.state(ctx, r.objects[i])
			switch {
			case readErr != nil:
				err = errors.Join(err, readErr)
			case found == nil:
				err = changedError(r.objects[i])
			case found.share == to && found.hasAfter(after):
				state, err = found, nil
			}
		}
		switch {
		case err == nil:
			r.now[i] = state
			return nil
		case isAnswer(err):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s: set to %s: %w: %w", r.objects[i], to, context.Cause(ctx), err)
		}
	}
}

// wait waits until every volume that may take the version shows it.
func (r *roller) wait(ctx context.Context, to int) error {
	var waits []fleet.OutdatedVolume
	var text, printed string
	for {
		began := time.Now()
		err := r.lookWithRetry(ctx)
		switch {
		case err != nil && (isAnswer(err) || waits == nil):
			return err
		case err == nil:
			if err := r.judge(); err != nil && !r.byHand {
				return err
			}
			if waits, text = r.laggards(to); text != printed {
				r.calls.say("%s: %s: %s", r.names(), share(to), text)
				printed = text
			}
			if len(waits) == 0 {
				return nil
			}
			pause(ctx, max(shortestPause, time.Since(began)))
		}
		if ctx.Err() != nil {
			r.printLaggards(waits)
			return &statusError{fmt.Errorf("%s: stays at %s: %w: run the command again when these volumes can show the version, or write the old values back",
				r.names(), share(to), context.Cause(ctx)), no}
		}
	}
}

// laggards returns what a step waits for, and a text about its progress.
func (r *roller) laggards(to int) (waits []fleet.OutdatedVolume, text string) {
	showing, volumes := 0, 0
	for i, result := range r.last.results {
		percent := max(to, r.now[i].percent())
		takes := func(uid string) bool {
			return place(status.Pod{UID: uid}) <= percent || r.now[i].isCanary && to == 0 // it must go everywhere
		}
		waits = append(waits, result.LaggardsOf(r.last.survey, r.now[i].isCanary, takes)...)
		showing, volumes = showing+result.Showing, volumes+result.Volumes
	}
	return waits, fmt.Sprintf("%d of %d volumes show the version, waiting for %d", showing, volumes, len(waits))
}

// printLaggards prints what a step waits for.
func (r *roller) printLaggards(laggards []fleet.OutdatedVolume) {
	for i := range laggards {
		l := &laggards[i]
		name := "node " + l.Node
		if l.Pod != nil {
			name = "pod " + l.Pod.String() + " on " + name
		}
		r.calls.say("  %s: %s: %s", name, l.Reason, l.Message)
	}
}

// finish says what follows after 100%. It restores the annotations of held versions.
func (r *roller) finish(ctx context.Context) error {
	ctx, cancel := r.deadline(ctx)
	defer cancel()
	for i, object := range r.objects {
		now := r.now[i]
		if i == 0 {
			r.tell(ctx, eventDone, "all pods have the change, and are well")
		}
		switch {
		case now.isCanary:
			r.calls.say("%s: done, all pods show the canary. To promote it, write its values to the stable object, wait with kubectl refvol converged, and delete it", object)
			continue
		case now.after == nil:
			r.calls.say("%s: done", object)
			continue
		}
		if err := r.set(ctx, i, *now.after, nil); err != nil {
			return err
		}
		if *now.after == "" {
			r.calls.say("%s: done, and %s is removed again", object, volume.RolloutAnnotation)
		} else {
			r.calls.say("%s: done, and %s is %s again", object, volume.RolloutAnnotation, *now.after)
		}
	}
	return nil
}

// isAnswer reports whether an error is a final answer, which no retry can change.
func isAnswer(err error) bool {
	_, known := errors.AsType[*statusError](err)
	return known || isRefusal(err)
}
