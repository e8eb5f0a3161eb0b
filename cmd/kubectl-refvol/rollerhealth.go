package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/fleet"
)

// healthPause is the shortest pause between two checks of the pods' health.
const healthPause = 2 * time.Second

// patient is a taker whose health is watched once it has the change.
type patient struct {
	// before is the pod's health before it had the change.
	before fleet.Health
	// took means that its volumes show the versions. If they already did when the pod was first seen, before is not reliable: the pod is
	// new (isNew), or has had the change from an earlier run (earlier).
	took, isNew, earlier bool
}

// watchHealth returns nil if the pods that have the change stay well for a while.
func (r *roller) watchHealth(ctx context.Context, to int) error {
	count := 0
	for i := range r.takers {
		if p := r.patients[r.takers[i].UID]; p != nil && p.took {
			count++
		}
	}
	r.say("%s: %s: watching %d pods for %s", r.names(), share(to), count, r.every)
	for end, took := time.Now().Add(r.every), time.Duration(0); ; {
		pause(ctx, min(max(healthPause, took), time.Until(end)))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		began := time.Now()
		last := !began.Before(end)
		err := errors.Join(r.checkUnchanged(ctx), r.examine(ctx, last))
		took = time.Since(began)
		switch {
		case err != nil && isAnswer(err):
			return err
		case err != nil && last:
			return fmt.Errorf("%s: stays at %s: whether the pods are well isn't known: %w", r.names(), share(to), err)
		case err != nil:
			r.warn(err)
		case last:
			return nil
		}
	}
}

// examine stores the health of takers that are seen for the first time. It fails if one that has the change is worse than before. end means
// the end of a step.
func (r *roller) examine(ctx context.Context, end bool) error {
	takers, namespaces := map[string]*fleet.Taker{}, map[string]bool{}
	for i := range r.takers {
		takers[r.takers[i].UID], namespaces[r.takers[i].Namespace] = &r.takers[i], true
	}
	var worse []string
	for namespace := range namespaces {
		pods, err := r.pods(ctx, namespace)
		if err != nil {
			return err
		}
		for i := range pods {
			pod := &pods[i]
			if taker := takers[fleet.UIDOf(pod)]; taker != nil {
				r.spread = max(r.spread, fleet.LongestSpread(pod, r.driver))
				if what := r.examinePod(taker, pod, end); what != "" {
					worse = append(worse, fmt.Sprintf("  pod %s/%s %s", pod.Namespace, pod.Name, what))
				}
			}
		}
	}
	if len(worse) == 0 {
		return nil
	}
	slices.Sort(worse)
	r.say("%s: these pods have taken the change, and are unhealthy since then:", r.names())
	for _, text := range worse {
		r.say("%s", text)
	}
	return &statusError{fmt.Errorf("%s: stopped: pods that became unhealthy: %d. The share stays, so that a revert reaches them at once. Write the old values back, then run: %s",
		r.names(), len(worse), r.commandTo(100)), no}
}

// examinePod says in what respect a pod is worse, or returns "".
func (r *roller) examinePod(taker *fleet.Taker, pod *corev1.Pod, end bool) string {
	now := fleet.HealthOf(pod)
	p := r.patients[taker.UID]
	if p == nil {
		p = &patient{before: now, took: taker.Current, isNew: taker.Current}
		r.patients[taker.UID] = p
		return ""
	}
	p.took = p.took || taker.Current
	if !p.took {
		return ""
	}
	if now.Ready && !p.before.Ready {
		p.before = now
	}
	if what := p.before.Regression(pod, r.allowRestarts, end); what != "" {
		return what
	}
	// Such a pod may have been well with the old version. With --to, the user may continue in order to repair it.
	if end && !r.byHand && (p.earlier && !now.Ready || p.isNew && now.IsFailing()) {
		return fleet.NotReadyReason(pod)
	}
	return ""
}
