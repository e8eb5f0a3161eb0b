package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// consentAge is how old an answer may be by which a new volume shows an object.
	consentAge = 5 * time.Second
	// refusalTime is how long after a first refusal a second one must come before a live
	// volume loses files: an API server that has just started refuses everybody until it has
	// read the roles, and one of several may lag behind the others.
	refusalTime = 5 * time.Second
)

// errUnreviewed is why a volume waits for the answer whether its pod may have its objects.
var errUnreviewed = errors.New("access could not be reviewed")

// access is what is known of a pod's rights to the objects of a volume that it needs a
// right to. The lock of the contents guards it.
type access struct {
	errand
	// unknown holds the objects whose last question had no answer. While there are any,
	// the files are not changed but for taking away what is refused.
	unknown map[volume.Ref]bool
	// refused holds the objects that the pod may not have.
	refused map[volume.Ref]bool
	// suspects holds when an object was first refused, until that is confirmed.
	suspects map[volume.Ref]time.Time
	// answers has come, and is for the next reconcile to judge; nil for none.
	answers *answers
}

// authorize returns nil once the pod of a new volume may have all its objects that it needs
// a right to, by answers that are new. A refusal is final, and has the same text whether the
// object exists or not: nothing was asked of it yet. An error of the review is no refusal;
// it is tried again for as long as a publish may wait.
func (p *Publisher) authorize(ctx context.Context, v *published) error {
	if len(v.reviewed) == 0 || time.Since(v.authorized) < consentAge {
		return nil
	}
	until, cancel := context.WithDeadline(ctx, v.deadline)
	defer cancel()
	backoff := refreshBackoff()
	for {
		err := p.authorizeOnce(ctx, v)
		if err == nil || ReasonOf(err) != ReasonUnavailable {
			return err
		}
		retry := time.NewTimer(backoff.Step())
		select {
		case <-retry.C:
		case <-p.stopping:
			retry.Stop()
			return err
		case <-until.Done():
			retry.Stop()
			return err
		}
	}
}

// authorizeOnce asks once, with a bound on its time. ReasonUnavailable says that there was no
// answer.
func (p *Publisher) authorizeOnce(ctx context.Context, v *published) error {
	ctx, cancel := context.WithTimeout(ctx, errandTime)
	defer cancel()
	asked := time.Now()
	if err := p.identify(ctx, v); err != nil {
		return err
	}
	got := p.review(ctx, v, p.admitted)
	if len(got.refused) > 0 {
		return p.refusal(v, got.refused)
	}
	if got.err != nil {
		return fail(ReasonUnavailable, "%w: %w", errUnreviewed, got.err)
	}
	v.authorized, v.contents.access.unknown = asked, nil
	return nil
}

// admitted asks for a new volume.
func (p *Publisher) admitted(ctx context.Context, pod volume.Pod, ref volume.Ref) (bool, error) {
	return p.opts.Access.Admitted(ctx, pod, ref, consentAge)
}

// reviewLater has the rights of a live volume reviewed if that is due, was never done by
// this process, or has a refusal to confirm. Until the answers come, the last ones count.
// The error says that some are unknown. The caller holds the lock of the contents.
func (p *Publisher) reviewLater(ctx context.Context, v *published, due bool) error {
	a := &v.contents.access
	if len(v.reviewed) == 0 {
		return nil
	}
	maxAge := p.opts.ResyncInterval / 2
	if due {
		a.retryAt, a.again = time.Time{}, a.running
	}
	switch {
	case a.confirmable():
		maxAge = 0
	case len(a.suspects) > 0:
		// The queue keeps but the next time of an id, so an earlier one takes this one's place.
		p.queue.AddAfter(v.request.VolumeID, a.untilConfirmable())
		if len(a.unknown) > 0 {
			return errPutOff
		}
		return nil
	case !due && len(a.unknown) == 0:
		return nil
	}
	err := p.later(ctx, v, &a.errand, errUnreviewed, func(ctx context.Context) func() error {
		got := p.review(ctx, v, func(ctx context.Context, pod volume.Pod, ref volume.Ref) (bool, error) {
			return p.opts.Access.Allowed(ctx, pod, ref, maxAge)
		})
		return func() error {
			if errors.Is(got.err, errPanicked) {
				return fail(ReasonUnavailable, "%w", got.err) // the last answers stay
			}
			v.contents.access.answers = &got
			if got.err == nil || errors.Is(got.err, authz.ErrNoToken) {
				return got.err // a token makes a resync due when it comes
			}
			return fail(ReasonUnavailable, "%w", got.err)
		}
	})
	if len(a.unknown) == 0 {
		return nil
	}
	return err
}

// confirmable says whether it is time to ask again about a refusal.
func (a *access) confirmable() bool { return len(a.suspects) > 0 && a.untilConfirmable() <= 0 }

// untilConfirmable returns how long it is until a first refusal can be confirmed.
func (a *access) untilConfirmable() time.Duration {
	wait := refusalTime
	for _, since := range a.suspects {
		wait = min(wait, refusalTime-time.Since(since))
	}
	return wait
}

// judge takes in the answers of the last review of a live volume, if there are new ones. The
// caller holds the lock of the contents.
func (p *Publisher) judge(ctx context.Context, v *published) {
	a := &v.contents.access
	got := a.answers
	if got == nil {
		return
	}
	a.answers = nil
	fresh := maps.Clone(got.refused)
	maps.DeleteFunc(fresh, func(ref volume.Ref, _ bool) bool { return a.refused[ref] || !a.suspects[ref].IsZero() })
	shown := p.shows(ctx, v, fresh)
	if v.contents.gone {
		return
	}
	refused, suspects := map[volume.Ref]bool{}, map[volume.Ref]time.Time{}
	for _, use := range v.reviewed {
		ref := use.Ref
		since, suspect := a.suspects[ref]
		switch {
		case got.unknown[ref]:
			if refused[ref] = a.refused[ref]; suspect {
				suspects[ref] = since
			}
		case !got.refused[ref]:
		case a.refused[ref], suspect && time.Since(since) >= refusalTime, fresh[ref] && !shown[ref]:
			refused[ref] = true // confirmed, or no file of it is there to be lost
		case suspect:
			suspects[ref] = since
		default:
			suspects[ref] = time.Now()
		}
	}
	maps.DeleteFunc(refused, func(_ volume.Ref, is bool) bool { return !is })
	for ref := range suspects {
		// What this process has never seen allowed must not be written meanwhile.
		if a.unknown[ref] {
			got.unknown[ref] = true
		}
	}
	a.unknown, a.suspects = got.unknown, suspects
	if maps.Equal(refused, a.refused) {
		return
	}
	a.refused = refused
	v.contents.proven = false
	allowed := slices.DeleteFunc(slices.Clone(v.refs), func(ref volume.Ref) bool { return refused[ref] })
	p.opts.Objects.RegisterPod(v.request.Pod, v.request.VolumeID, allowed)
}

// refusal returns an error that names each object that the pod may not have, nil if there
// is none.
func (p *Publisher) refusal(v *published, refused map[volume.Ref]bool) error {
	if len(refused) == 0 {
		return nil
	}
	needs := "get" // where they were switched off since the publish, nobody is asked
	if p.opts.Access != nil {
		needs = p.opts.Access.Needs()
	}
	var texts []string
	for _, use := range v.reviewed {
		if refused[use.Ref] && len(texts) == fewNames {
			texts = append(texts, fmt.Sprintf("and %d more of the objects that it names", len(refused)-fewNames))
			break
		}
		if refused[use.Ref] {
			texts = append(texts, fmt.Sprintf("%s: Forbidden: service account %q of the pod may not %s %s; whoever owns namespace %q consents by a Role and a RoleBinding there",
				use.Field, v.request.Pod.ServiceAccount, needs, use.Ref, use.Ref.Namespace))
		}
	}
	return fail(ReasonForbidden, "%w", &refusedError{strings.Join(texts, "; ")})
}

// refusedError names the objects that a pod may not have.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }
