package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/health"
	"github.com/refvol/refvol/pkg/status"
)

// look is what the plugins said when all of them were asked, and what the pods' own status said later.
type look struct {
	// at is the time of the pods' status, surveyedAt that of the plugins' answers. took is how long the last one took.
	at, surveyedAt time.Time
	took           time.Duration
	survey         *fleet.Survey
	// results are those of the objects, in their order. takers are the pods with volumes that take changes, by UID.
	results []*fleet.Result
	takers  map[string]*fleet.Taker
	// spread is the longest spread of the takers' volumes.
	spread time.Duration
}

// places returns the places of the pods that show an object, or may, lowest first. Without is nil, or reports which pods are left out.
func (l *look) places(object fleet.Object, without func(uid string) bool) (places []int) {
	for uid, t := range l.takers {
		if slices.Contains(t.Objects, object) && (without == nil || !without(uid)) {
			places = append(places, place(t.Pod))
		}
	}
	slices.Sort(places)
	return places
}

// namespaces returns those of the takers.
func (l *look) namespaces() map[string]bool {
	all := map[string]bool{}
	for _, t := range l.takers {
		all[t.Namespace] = true
	}
	return all
}

// checkUnchanged fails if somebody else has changed an object.
func (r *roller) checkUnchanged(ctx context.Context) error {
	for i, object := range r.objects {
		state, err := r.calls.state(ctx, object)
		if err != nil {
			return err
		}
		switch {
		case state != nil && state.isPaused && !r.byHand:
			return r.pausedError(object)
		case state == nil || state.Version != r.now[i].Version:
			return changedError(object)
		}
	}
	return nil
}

// lookWithRetry looks until that succeeds.
func (r *roller) lookWithRetry(ctx context.Context) error { return r.retry(ctx, r.look) }

// retry calls a function until it succeeds, fails for good, or ctx ends.
func (r *roller) retry(ctx context.Context, do func(context.Context) error) error {
	for {
		err := do(ctx)
		switch {
		case err == nil || isAnswer(err) || r.last == nil && isFinal(err):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w: %w", r.names(), context.Cause(ctx), err)
		}
		r.calls.warn(err)
		pause(ctx, healthPause)
	}
}

// look asks all plugins what their volumes show, and looks at the pods.
func (r *roller) look(ctx context.Context) error {
	began := time.Now()
	survey, err := r.calls.survey(ctx, r.objects...)
	if err != nil {
		return err
	}
	if err := r.checkUnchanged(ctx); err != nil {
		return err
	}
	next := &look{survey: survey, surveyedAt: began, takers: map[string]*fleet.Taker{}}
	versions := map[fleet.Object]status.Version{}
	for i, object := range r.objects {
		version := r.now[i].Version
		versions[object] = version
		next.results = append(next.results, fleet.Evaluate(object, r.opened, &version, &version, survey))
	}
	if r.last != nil { // a node that does not answer has its pods still
		next.spread, next.takers = r.last.spread, maps.Clone(r.last.takers)
	}
	takers := survey.Takers(versions)
	for i := range takers {
		t := &takers[i]
		if was := next.takers[t.UID]; was != nil && was.Current && t.Shows { // a plugin learns late that only the annotation has changed
			t.Current = true
		}
		next.takers[t.UID] = t
	}
	if err := r.lookAtPods(ctx, next); err != nil {
		return err
	}
	next.took = time.Since(began)
	r.last = next
	return nil
}

// lookAgain looks at the pods. If the last answers of the plugins are old, or no pod is known to have the change, it asks the plugins again.
func (r *roller) lookAgain(ctx context.Context) error {
	age := max(surveyPause, 4*r.last.took)
	if r.watch.Verdict(r.last.at).Takers == 0 {
		age /= 4
	}
	if time.Since(r.last.surveyedAt) >= age {
		return r.look(ctx)
	}
	if err := r.checkUnchanged(ctx); err != nil {
		return err
	}
	return r.lookAtPods(ctx, r.last)
}

// lookAtPods looks at the pods of the takers' namespaces, and shows the takers to the watch.
func (r *roller) lookAtPods(ctx context.Context, l *look) error {
	var signs []health.Sign
	there := map[string]bool{}
	for namespace := range l.namespaces() {
		pods, err := r.calls.pods(ctx, namespace)
		if err != nil {
			return err
		}
		for i := range pods {
			if taker := l.takers[fleet.UIDOf(&pods[i])]; taker != nil {
				l.spread = max(l.spread, fleet.LongestSpread(&pods[i], r.cluster.driver))
				signs = append(signs, sign(&pods[i], taker, l.survey))
				there[taker.UID] = true
			}
		}
	}
	maps.DeleteFunc(l.takers, func(uid string, _ *fleet.Taker) bool { return !there[uid] })
	l.at = time.Now()
	r.watch.Look(l.at, signs)
	return nil
}

// sign returns what a look says about a pod.
func sign(pod *corev1.Pod, taker *fleet.Taker, survey *fleet.Survey) health.Sign {
	node := slices.IndexFunc(survey.Nodes, func(n fleet.Node) bool { return n.Name == pod.Spec.NodeName })
	return health.Sign{
		UID: taker.UID, Name: pod.Namespace + "/" + pod.Name, Created: pod.CreationTimestamp.Time, Has: taker.Current,
		Ready: fleet.IsReady(pod), Failed: pod.Status.Phase == corev1.PodFailed, Restarts: fleet.Restarts(pod),
		Leaves:  pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded,
		Unknown: fleet.IsDisrupted(pod) || node >= 0 && survey.Nodes[node].Problem != nil && survey.Nodes[node].Problem.Reason == fleet.NodeNotReady,
		Text:    fleet.NotReadyText(pod),
	}
}
