// Package health judges whether the pods that took a change are well.
//
// It owns which signs of a pod count, from when on, and how long each may last. It is pure: it sends no request and has no clock. It must not
// know how a pod takes a change, or what follows from a verdict.
package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Limits say what a pod may do after it has taken the change.
type Limits struct {
	// Restarts is how often it may restart.
	Restarts int32
	// Unready is how long a pod that was ready may be not ready. Start is how long a pod may take until it is ready for the first time, or
	// again after a restart that Restarts allows.
	Unready, Start time.Duration
}

// Sign is what one look says about a pod.
type Sign struct {
	// UID identifies the pod. Name is its namespace and name.
	UID, Name string
	// Created is when the pod was created. Has means that it shows the change.
	Created time.Time
	Has     bool
	// Ready, Failed and Restarts are in the pod's status. Restarts has the restarts of each container of the application, by name.
	Ready, Failed bool
	Restarts      map[string]int32
	// Leaves means that the pod is being deleted. From then on, only what it did before counts.
	Leaves bool
	// Unknown means that the pod is being drained, or that its node is not ready. What happens to it meanwhile does not count.
	Unknown bool
	// Text says what ails the containers, or is "".
	Text string
}

// Finding is an unhealthy pod.
type Finding struct {
	// Name is the pod's namespace and name, What says what is wrong, and Since is when that began.
	Name, What string
	Since      time.Time
}

// Verdict is what is known about all pods that have the change.
type Verdict struct {
	// Takers is the number of pods that have it now, apart from those that leave, and those that are left out.
	Takers int
	// Unhealthy are the unhealthy ones, by name. A pod that was unhealthy when it left still counts.
	Unhealthy []Finding
	// Undecided are those of which it is not known yet, by name.
	Undecided []string
	// Lost means that more than half of the pods of Begin have left, or are not known.
	Lost bool
}

// Watch knows the pods that have or may take a change. It is not safe for concurrent use.
type Watch struct {
	limits Limits
	pods   map[string]*patient
	// began are the pods that had the change at Begin, by UID.
	began map[string]bool
	// first is the time of the first look.
	first time.Time
}

// patient is what is known about one pod.
type patient struct {
	Sign

	// tookAt is when a look first found the change in the pod, or zero. restarts are those of the look before.
	tookAt   time.Time
	restarts map[string]int32
	// isLeftOut means that the pod was not ready, and did not have the change, when it was first seen, and has not been ready since. Like isOld,
	// only a pod can be that is older than the first look.
	isLeftOut bool
	// isOld means that it had the change and was not ready when it was first seen, after an earlier run of the command. The restarts of such pods
	// count once they were ready, because a restart may be what heals them.
	isOld bool
	// wasReady means that a look has found it ready. unreadySince is zero while it is ready, and readySince while it is not.
	wasReady                 bool
	unreadySince, readySince time.Time
	// hasLeft means that it leaves or is gone.
	hasLeft bool
	// found is what is wrong with it for good, or nil.
	found *Finding
}

// New returns a Watch that knows no pod.
func New(limits Limits) *Watch { return &Watch{limits: limits, pods: map[string]*patient{}} }

// Look takes what a look at a time says about all pods that may take the change. A pod that is missing is gone.
func (w *Watch) Look(now time.Time, all []Sign) {
	if w.first.IsZero() {
		w.first = now
	}
	there := map[string]bool{}
	for i := range all {
		sign := &all[i]
		there[sign.UID] = true
		p := w.pods[sign.UID]
		switch {
		case p == nil && sign.Leaves:
		case p == nil:
			p = &patient{}
			if !sign.Created.After(w.first) { // otherwise all its restarts come after the change
				p.isLeftOut, p.isOld, p.restarts = !sign.Ready && !sign.Has, !sign.Ready && sign.Has, sign.Restarts
			}
			w.pods[sign.UID] = p
			w.look(p, sign, now)
		case !p.hasLeft:
			w.look(p, sign, now)
		}
	}
	for uid, p := range w.pods {
		if !there[uid] {
			w.leave(p, now)
		}
	}
}

// look takes what a look says about one pod.
func (w *Watch) look(p *patient, sign *Sign, now time.Time) {
	switch {
	case sign.Leaves:
		p.Restarts = sign.Restarts
		w.leave(p, now)
		return
	case sign.Unknown:
		p.UID, p.Name, p.Unknown, p.unreadySince = sign.UID, sign.Name, true, time.Time{}
		return
	case !sign.Has: // also if the change was taken back
		p.tookAt, p.found, p.restarts = time.Time{}, nil, sign.Restarts
	case p.tookAt.IsZero():
		p.tookAt = now
	}
	if p.Sign = *sign; (p.isOld || p.isLeftOut) && !p.wasReady {
		p.restarts = sign.Restarts
	}
	switch {
	case sign.Ready && p.readySince.IsZero():
		p.wasReady, p.isLeftOut, p.unreadySince, p.readySince = true, false, time.Time{}, now
	case !sign.Ready && p.unreadySince.IsZero():
		p.unreadySince, p.readySince = now, time.Time{}
	}
	if what, since := w.ails(p, now); what != "" && (p.Failed || w.restarted(p) > w.limits.Restarts) {
		p.found = cmp.Or(p.found, &Finding{p.Name, what, since})
	}
}

// leave notes that a pod is gone, or soon will be. If it was unhealthy it stays so.
func (w *Watch) leave(p *patient, now time.Time) {
	if p.hasLeft {
		return
	}
	p.hasLeft = true
	if what, since := w.ails(p, now); what != "" {
		p.found = cmp.Or(p.found, &Finding{p.Name, what, since})
	}
}

// restarted returns how often a pod has restarted since it took the change. A restart in place, which restarts all containers, counts once.
func (*Watch) restarted(p *patient) (most int32) {
	for name, restarts := range p.Restarts {
		most = max(most, restarts-p.restarts[name])
	}
	return most
}

// ails says what is wrong with a pod that has the change, and since when, or returns "".
func (w *Watch) ails(p *patient, now time.Time) (what string, since time.Time) {
	restarts := w.restarted(p)
	switch {
	case p.tookAt.IsZero() || p.isLeftOut:
		return "", now
	case p.found != nil:
		return p.found.What, p.found.Since
	case p.Failed:
		return "failed" + p.Text, now
	case restarts > w.limits.Restarts:
		return fmt.Sprintf("restarted %s%s", times(restarts), p.Text), now
	case p.Ready || p.Unknown:
		return "", now
	}
	since = p.unreadySince
	if p.tookAt.After(since) {
		since = p.tookAt
	}
	limit := w.limits.Unready
	if !p.wasReady || restarts > 0 {
		limit = w.limits.Start
	}
	switch {
	case now.Sub(since) < limit:
		return "", since
	case p.wasReady:
		return "is not ready any more" + p.Text, since
	}
	return "was never ready" + p.Text, since
}

// isSuspect reports whether a pod was ill with the change before. A container in a crash loop is ready for a moment after each restart, so such
// a pod is well only when it has been ready for a while.
func (w *Watch) isSuspect(p *patient) bool { return p.isOld || w.restarted(p) > 0 }

// IsLeftOut reports whether a pod is left out, because it was not ready and did not have the change at the first look.
func (w *Watch) IsLeftOut(uid string) bool {
	p := w.pods[uid]
	return p != nil && p.isLeftOut
}

// LeftOut returns the names of the pods that are left out, sorted.
func (w *Watch) LeftOut() (names []string) {
	for _, p := range w.pods {
		if p.isLeftOut {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Begin begins to count the pods that leave, of those that have the change now and are known. It returns their number.
func (w *Watch) Begin() int {
	w.began = map[string]bool{}
	for uid, p := range w.pods {
		if !p.tookAt.IsZero() && !p.hasLeft && !p.Unknown && !p.isLeftOut {
			w.began[uid] = true
		}
	}
	return len(w.began)
}

// Verdict returns what is known at a time, which must not be before the last look.
func (w *Watch) Verdict(now time.Time) (v Verdict) {
	lost := 0
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		p := w.pods[uid]
		if w.began[uid] && (p.hasLeft || p.Unknown) {
			lost++
		}
		if !p.tookAt.IsZero() && !p.hasLeft && !p.isLeftOut {
			v.Takers++
		}
		switch what, since := w.ails(p, now); {
		case p.hasLeft && p.found == nil:
		case what != "":
			v.Unhealthy = append(v.Unhealthy, Finding{p.Name, what, since})
		case !p.tookAt.IsZero() && !p.isLeftOut && !p.Unknown && (!p.Ready || w.isSuspect(p) && now.Sub(p.readySince) < w.limits.Unready):
			v.Undecided = append(v.Undecided, p.Name)
		}
	}
	slices.SortFunc(v.Unhealthy, func(a, b Finding) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(v.Undecided)
	v.Lost = 2*lost > len(w.began)
	return v
}

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
