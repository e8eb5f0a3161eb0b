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
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// roller gives changes of objects to more and more pods. It is used for one call of roll.
type roller struct {
	objects []fleet.Object
	driver  string
	// byHand means that there is one step, and that the annotation stays at its share.
	byHand, opened bool
	allowRestarts  int32
	every, timeout time.Duration
	// state returns an object's state, or nil if the object doesn't exist. set changes it, and fails with a changedError if the object has
	// changed since the given state.
	state  func(context.Context, fleet.Object) (*rolloutState, error)
	set    func(ctx context.Context, object fleet.Object, from *rolloutState, share string, after *string) (*rolloutState, error)
	survey func(context.Context, ...fleet.Object) (*fleet.Survey, error)
	// pods lists the pods of a namespace.
	pods func(ctx context.Context, namespace string) ([]corev1.Pod, error)
	say  func(format string, args ...any)
	warn func(error)

	// now has the state of each object.
	now []*rolloutState
	// nodes, results and takers come from the last look. spread is the longest spread of the takers' volumes.
	nodes   *fleet.Survey
	results []*fleet.Result
	takers  []fleet.Taker
	spread  time.Duration
	// patients has every taker that was seen, by UID.
	patients map[string]*patient
}

// roll returns nil when the last step has succeeded.
func (r *roller) roll(ctx context.Context, steps []rolloutStep) error {
	if err := r.begin(ctx); err != nil {
		return r.interrupted(ctx, err)
	}
	last := 0
	for i, step := range steps {
		to := r.raise(step)
		if i > 0 && to <= last {
			r.say("%s: %s has no more pods than the step before: left out", r.names(), step)
			continue
		}
		if step.pods == 0 && to > step.percent {
			r.say("%s: no pod has a place up to %s: raised to %s", r.names(), step, share(to))
		}
		if err := r.step(ctx, to); err != nil {
			return r.interrupted(ctx, err)
		}
		last = to
	}
	if last < 100 {
		r.say("%s: stays at %s", r.names(), share(last))
		return nil
	}
	return r.interrupted(ctx, r.restore(ctx))
}

// interrupted adds to an error caused by Ctrl-C how to continue.
func (r *roller) interrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%s: interrupted: the share stays, and the same command goes on from there: %w", r.names(), context.Cause(ctx))
}

// begin finds out where the rollout is.
func (r *roller) begin(ctx context.Context) error {
	for _, object := range r.objects {
		state, err := r.state(ctx, object)
		if err != nil {
			return err
		}
		if state == nil {
			return &statusError{fmt.Errorf("%s does not exist", object), no}
		}
		if _, ok := volume.ParseShare(state.share); !ok && !r.byHand {
			return &statusError{fmt.Errorf("%s: %s is %q, which is not a share, so all changes are held: set it with %s",
				object, volume.RolloutAnnotation, state.share, r.commandTo(0)), no}
		}
		r.now = append(r.now, state)
	}
	r.patients = map[string]*patient{}
	deadline, cancel := r.deadline(ctx)
	defer cancel()
	if err := r.updateWithRetry(deadline); err != nil {
		return err
	}
	goesOn := slices.ContainsFunc(r.now, func(s *rolloutState) bool { return s.after != nil })
	for _, p := range r.patients {
		p.isNew, p.earlier = false, p.took && goesOn
	}
	for i, object := range r.objects {
		if len(r.takersOf(object)) > 0 {
			continue
		}
		if r.results[i].None {
			return &statusError{fmt.Errorf("no refvol volume shows %s: is it the right name and namespace?", object), none}
		}
		r.printLaggards(r.results[i].Laggards)
		return &statusError{fmt.Errorf("no volume that takes changes is known to show %s", object), none}
	}
	return nil
}

// deadline returns the deadline of a step.
func (r *roller) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout, cause := r.timeout, fmt.Errorf("--timeout %s has passed", r.timeout)
	if r.spread > timeout {
		timeout, cause = r.spread, fmt.Errorf("%s, the volumes' longest spread, has passed", r.spread)
	}
	return context.WithTimeoutCause(ctx, timeout, cause)
}

// raise returns the share of a step. It raises the share until each object has a pod in it, because otherwise nobody would try the change.
func (r *roller) raise(step rolloutStep) (percent int) {
	if step == (rolloutStep{}) {
		return 0
	}
	percent = step.percent
	for _, object := range r.objects {
		places := r.takersOf(object)
		if n := len(places); n > 0 {
			percent = max(percent, places[min(max(step.pods, 1), n)-1])
		}
	}
	return percent
}

// takersOf returns the places of the pods that show an object, lowest first.
func (r *roller) takersOf(object fleet.Object) (places []int) {
	for i := range r.takers {
		if slices.Contains(r.takers[i].Objects, object) {
			places = append(places, place(r.takers[i].Pod))
		}
	}
	slices.Sort(places)
	return places
}

func place(pod status.Pod) int { return volume.RolloutPlace(types.UID(pod.UID)) }

// step raises the objects to a share, waits until their volumes show the change, and watches the pods.
func (r *roller) step(ctx context.Context, to int) error {
	deadline, cancel := r.deadline(ctx)
	defer cancel()
	if err := r.updateWithRetry(deadline); err != nil {
		return err
	}
	for uid, p := range r.patients { // problems of pods without the change have another cause
		if !p.took {
			delete(r.patients, uid)
		}
	}
	if err := r.updateWithRetry(deadline); err != nil {
		return err
	}
	for i, object := range r.objects {
		if nodes := r.nodes.WithoutRollout(object); len(nodes) > 0 && to < 100 {
			return &statusError{fmt.Errorf("%s: the plugin of these nodes is of a release without %s, and gives the change to all pods at once: %s: upgrade it first",
				object, volume.RolloutAnnotation, strings.Join(nodes, ", ")), no}
		}
		if err := r.raiseObject(ctx, i, to); err != nil {
			return err
		}
	}
	if err := r.wait(deadline, to); err != nil || to == 0 {
		return err
	}
	return r.watchHealth(ctx, to)
}

// raiseObject raises one object to a share.
func (r *roller) raiseObject(ctx context.Context, i, to int) (err error) {
	now := r.now[i]
	after := now.after
	if !r.byHand {
		if present := now.percent(); present > to || present == to && after != nil || present == 100 {
			r.say("%s: is at %s already", r.objects[i], share(present))
			return nil
		}
		if after == nil {
			after = &now.share
		}
	}
	r.now[i], err = r.set(ctx, r.objects[i], now, share(to), after)
	if err != nil {
		r.now[i] = now
	}
	return err
}

// wait waits until every volume that may take the version shows it.
func (r *roller) wait(ctx context.Context, to int) error {
	var waits []fleet.OutdatedVolume
	var text, printed string
	for {
		began := time.Now()
		err := r.updateWithRetry(ctx)
		switch {
		case err != nil && (isAnswer(err) || waits == nil):
			return err
		case err == nil:
			if waits, text = r.laggards(to); text != printed {
				r.say("%s: %s: %s", r.names(), share(to), text)
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
	for i, result := range r.results {
		percent := max(to, r.now[i].percent())
		waits = append(waits, result.LaggardsOf(func(pod status.Pod) bool { return place(pod) <= percent })...)
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
		r.say("  %s: %s: %s", name, l.Reason, l.Message)
	}
}

// isAnswer reports whether an error is a final answer, which no retry can change.
func isAnswer(err error) bool {
	_, known := errors.AsType[*statusError](err)
	return known || isRefusal(err)
}

// checkUnchanged fails if somebody else has changed an object.
func (r *roller) checkUnchanged(ctx context.Context) error {
	for i, object := range r.objects {
		state, err := r.state(ctx, object)
		if err != nil {
			return err
		}
		if state == nil || state.Version != r.now[i].Version {
			return changedError(object)
		}
	}
	return nil
}

// updateWithRetry repeats update until it succeeds.
func (r *roller) updateWithRetry(ctx context.Context) error {
	for {
		err := r.update(ctx)
		switch {
		case err == nil || isAnswer(err) || r.nodes == nil && isFinal(err):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w: %w", r.names(), context.Cause(ctx), err)
		}
		r.warn(err)
		pause(ctx, healthPause)
	}
}

// update asks all plugins what their volumes show, and examines the pods.
func (r *roller) update(ctx context.Context) error {
	survey, err := r.survey(ctx, r.objects...)
	if err != nil {
		return err
	}
	if err := r.checkUnchanged(ctx); err != nil {
		return err
	}
	r.nodes, r.results = survey, nil
	versions := map[fleet.Object]status.Version{}
	for i, object := range r.objects {
		version := r.now[i].Version
		versions[object] = version
		r.results = append(r.results, fleet.Evaluate(object, r.opened, &version, &version, survey))
	}
	r.takers = survey.Takers(versions)
	return r.examine(ctx, false)
}

// restore restores the annotations.
func (r *roller) restore(ctx context.Context) (err error) {
	for i, object := range r.objects {
		now := r.now[i]
		if now.after == nil {
			r.say("%s: done", object)
			continue
		}
		if r.now[i], err = r.set(ctx, object, now, *now.after, nil); err != nil {
			return err
		}
		if *now.after == "" {
			r.say("%s: done, and %s is removed again", object, volume.RolloutAnnotation)
		} else {
			r.say("%s: done, and %s is %s again", object, volume.RolloutAnnotation, *now.after)
		}
	}
	return nil
}
