package access

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// consent is what is known of an account's right to an object. Tracker.mu guards it.
type consent struct {
	// needed is by whom: mounted volumes of pods of the account.
	needed map[*Registration]struct{}
	// allowed says that the last answer was yes, or that a no after it is not confirmed yet.
	allowed bool
	// refused says that a no was confirmed, and no yes has come since.
	refused bool
	// suspect is when a no came first that is not confirmed yet.
	suspect time.Time
	// asking says that a question is under way whose answer is due.
	asking bool
	// answered is when the last answer came; zero for never.
	answered time.Time
	// err is why the last question had no answer.
	err error
	// delay is what the next try waits after one without an answer.
	delay backoff.Delay
}

// consentTo returns the answer about an object that the account of a registration needs a
// right to, or allowed.
func (t *Tracker) consentTo(r *Registration, ref volume.Ref) (answer Answer, allowed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[question{account: r.account(), ref: ref}]
	switch {
	case c == nil:
		return Answer{State: Unknown, Err: ErrPending}, false
	case c.refused:
		return Answer{State: Refused, Confirmed: true}, false
	case c.err != nil:
		return Answer{State: Unknown, Err: fmt.Errorf("%w: %w", ErrUnreviewed, c.err)}, false
	case c.allowed:
		return Answer{}, true
	case !c.suspect.IsZero():
		return Answer{State: Refused}, false
	}
	return Answer{State: Unknown, Err: ErrPending}, false
}

// review asks whether an account may have an object, and takes the answer in.
func (t *Tracker) review(ctx context.Context, q question) {
	pod, maxAge, needed := t.next(q)
	if !needed {
		return
	}
	yes, err := t.mayHave(forPod(ctx, pod), pod, q.ref, func() (bool, error) {
		return t.opts.Reviews.Allowed(ctx, pod, q.ref, maxAge)
	})
	news, refusal := t.takeIn(q, yes, err)
	for _, r := range t.neededBy(q) {
		if refusal {
			r.reregister()
		}
		news = news || r.waitedFor()
	}
	if news {
		t.opts.Changed(q.account, q.ref)
	}
}

// Pending says whether answers are still due, as after a Recheck. If so, Changed is called with
// the last of them, even if that is no change.
func (r *Registration) Pending() bool {
	// Noted before the look, so that an answer in between is told.
	r.setWaits(true)
	if r.isAsking() {
		return true
	}
	r.setWaits(false)
	return false
}

func (r *Registration) setWaits(waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits = waits
}

// waitedFor says, once, that no answer is due any more, after Pending has said that some are.
func (r *Registration) waitedFor() bool {
	r.mu.Lock()
	waits := r.waits
	r.mu.Unlock()
	if !waits {
		return false
	}
	asking := r.isAsking()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waits || asking {
		return false
	}
	r.waits = false
	return true
}

func (r *Registration) isAsking() bool {
	t := r.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	for ref := range r.needs {
		if c := t.consents[question{account: r.account(), ref: ref}]; c != nil && c.asking {
			return true
		}
	}
	return false
}

// switchedOff says whether an object is of another namespace and these were switched off
// since the publish.
func (t *Tracker) switchedOff(pod volume.Pod, ref volume.Ref) bool {
	return !t.opts.CrossNamespace && ref.Namespace != pod.Namespace
}

// mayHave calls ask, unless what it asks for was switched off.
func (t *Tracker) mayHave(ctx context.Context, pod volume.Pod, ref volume.Ref, ask func() (bool, error)) (bool, error) {
	if t.switchedOff(pod, ref) {
		return false, nil
	}
	return guarded(ctx, ask)
}

// next returns for which pod a question is to be asked, and how old its answer may be; not
// needed if no volume needs it any more.
func (t *Tracker) next(q question) (pod volume.Pod, maxAge time.Duration, needed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[q]
	if c == nil {
		return pod, 0, false
	}
	for r := range c.needed {
		pod = r.opts.Pod
		break
	}
	if !c.suspect.IsZero() {
		return pod, 0, true
	}
	return pod, t.opts.MaxAge - t.recentAge(), true
}

// takeIn notes an answer, and when the question is to be asked again. It returns whether that
// is news, and whether the object is refused now and was not before, or the other way round.
func (t *Tracker) takeIn(q question, yes bool, err error) (news, refusal bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[q]
	if c == nil {
		return false, false
	}
	before := *c
	t.update(q, c, yes, err)
	c.asking = false
	if err == nil {
		c.answered = time.Now()
	}
	return !c.says(&before), c.refused != before.refused
}

// recentAge is for how long an answer serves the resyncs of other volumes.
func (t *Tracker) recentAge() time.Duration { return t.opts.MaxAge / 10 }

// isRecent says whether a resync need not ask again, as that of another volume has just done so.
func (t *Tracker) isRecent(c *consent) bool {
	return c.err == nil && c.suspect.IsZero() && time.Since(c.answered) < t.recentAge()
}

// says reports whether two states come to the same answer.
func (c *consent) says(other *consent) bool {
	return c.allowed == other.allowed && c.refused == other.refused && c.suspect.Equal(other.suspect) && fmt.Sprint(c.err) == fmt.Sprint(other.err)
}

// update is takeIn for one consent. The caller holds mu.
func (t *Tracker) update(q question, c *consent, yes bool, err error) {
	switch {
	case errors.Is(err, errPanicked) && (c.allowed || c.refused):
		// The last answer stays, until the next resync.
	case err != nil:
		c.err = err
		if backoff.ConcernsAll(err) && !apierrors.IsTooManyRequests(err) {
			// What refuses after an outage may be a server that has just started, as what refused before it.
			c.suspect = time.Time{}
		}
		if !errors.Is(err, authz.ErrNoToken) { // a token has it asked again when it comes
			t.queue.AddAfter(q, retryAfter(&c.delay, err))
		}
	case yes:
		*c = consent{needed: c.needed, allowed: true}
	case c.refused:
		c.err, c.delay = nil, backoff.Delay{}
	case c.suspect.IsZero():
		c.err, c.delay = nil, backoff.Delay{}
		c.suspect = time.Now()
		t.queue.AddAfter(q, refusalTime)
	case time.Since(c.suspect) < refusalTime:
		c.err, c.delay = nil, backoff.Delay{}
		t.queue.AddAfter(q, refusalTime-time.Since(c.suspect))
	default:
		*c = consent{needed: c.needed, refused: true}
	}
}

// retryAfter returns how long the next try waits after a question that failed with err. What
// all questions wait for is paced where reviews are sent, so that each one follows soon after
// its end.
func retryAfter(delay *backoff.Delay, err error) time.Duration {
	if backoff.ConcernsAll(err) {
		*delay = backoff.Delay{}
		return time.Second + rand.N(time.Second)
	}
	return delay.Next(backoff.Short, err)
}

// neededBy returns the registrations that need the answer to a question.
func (t *Tracker) neededBy(q question) []*Registration {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*Registration
	if c := t.consents[q]; c != nil {
		for r := range c.needed {
			all = append(all, r)
		}
	}
	return all
}

// isRefused says whether a refusal was confirmed.
func (t *Tracker) isRefused(account volume.Account, ref volume.Ref) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[question{account: account, ref: ref}]
	return c != nil && c.refused
}
