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

// An answer is as old as its question: the right may be withdrawn meanwhile. How old an answer may be that a mounted
// volume relies on is Options.MaxAge: a resync finds out in time that a right was withdrawn.
const (
	// admitAge is how old an answer may be by which a new volume shows an object. It is short, as the volume has
	// nothing to lose, and long enough for the pods of a rollout to share their questions.
	admitAge = 5 * time.Second
	// refusalTime is how long after a first refusal a question must be sent whose answer confirms it, for a mounted
	// volume: an API server that has just started refuses everybody until it has
	// read the roles, and one of several may lag behind the others.
	refusalTime = 5 * time.Second
)

// right is what is asked about: a verb on an object, for a service account.
type right struct {
	account volume.Account
	ref     volume.Ref
	verb    string
}

// consent is what is known of a right. Tracker.mu guards it.
type consent struct {
	// yes is the last answer, and at when its question was sent; zero for never.
	yes bool
	at  time.Time
	// question is the one under way, nil for none, and users counts those who wait for an answer.
	question *question
	users    int

	// What follows is for mounted volumes.
	//
	// needed is by whom: mounted volumes of pods of the account.
	needed map[*Registration]struct{}
	// allowed says that the last answer was yes, or that a no after it is not confirmed yet.
	allowed bool
	// refused says that a no was confirmed, and no yes has come since.
	refused bool
	// suspect is when a no came first that is not confirmed yet.
	suspect time.Time
	// due says that an answer is.
	due bool
	// err is why the last question had no answer, and delay what the next try waits then.
	err   error
	delay backoff.Delay
}

// keptRight is the right that the pod of a mounted volume must keep.
func (r *Registration) keptRight(ref volume.Ref) right {
	verb := "" // where reviews were switched off since the publish, nobody is asked
	if reviews := r.tracker.opts.Reviews; reviews != nil {
		verb = reviews.kept()
	}
	return right{r.account(), ref, verb}
}

// consentTo returns the answer about an object that the account of a registration needs a
// right to, or allowed.
func (t *Tracker) consentTo(r *Registration, ref volume.Ref) (answer Answer, allowed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[r.keptRight(ref)]
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

// review asks whether the account of mounted volumes has a right, and notes why there is no answer.
func (t *Tracker) review(ctx context.Context, k right) {
	pod, maxAge, needed := t.next(k)
	if !needed {
		return
	}
	_, err := t.ask(forPod(ctx, pod), k, maxAge)
	if ctx.Err() != nil {
		return
	}
	all, news := t.reviewed(k, err)
	for _, r := range all {
		news = news || r.waitedFor()
	}
	if news {
		t.opts.Changed(k.account, k.ref)
	}
}

// next returns for which pod a question is to be asked, and how old its answer may be; not
// needed if no volume needs it any more.
func (t *Tracker) next(k right) (pod volume.Pod, maxAge time.Duration, needed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[k]
	if c == nil {
		return pod, 0, false
	}
	if len(c.needed) == 0 {
		t.forget(k, c)
		return pod, 0, false
	}
	for r := range c.needed {
		pod = r.opts.Pod
		break
	}
	if !c.suspect.IsZero() || c.err != nil { // an earlier answer settles neither
		return pod, 0, true
	}
	return pod, t.opts.MaxAge, true
}

// reviewed notes the end of a review, and returns the registrations that need the right, and whether
// a failure is news to them.
func (t *Tracker) reviewed(k right, err error) (all []*Registration, news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[k]
	if c == nil {
		return nil, false
	}
	c.due = false
	if err != nil {
		before := fmt.Sprint(c.err)
		t.fail(k, c, err)
		news = before != fmt.Sprint(c.err)
	}
	return c.registrations(), news
}

// fail notes why a question had no answer, and has it asked again. The caller holds mu.
func (t *Tracker) fail(k right, c *consent, err error) {
	if errors.Is(err, errPanicked) && (c.allowed || c.refused) {
		return // the last answer stays, until the next resync
	}
	c.err = err
	if backoff.ConcernsAll(err) && !apierrors.IsTooManyRequests(err) {
		// What refuses after an outage may be a server that has just started, as what refused before it.
		c.suspect = time.Time{}
	}
	if !errors.Is(err, authz.ErrNoToken) { // a token has it asked again when it comes
		t.queue.AddAfter(task{right: k}, retryAfter(&c.delay, err))
	}
}

// takeIn notes an answer to a question that was sent at a time. It returns whether that
// is news, and whether the object is refused now and was not before, or the other way round. The caller holds mu.
func (t *Tracker) takeIn(k right, c *consent, yes bool, sent time.Time) (news, refusal bool) {
	before := *c
	c.yes, c.at = yes, sent
	c.err, c.delay = nil, backoff.Delay{}
	switch {
	case yes:
		c.allowed, c.refused, c.suspect = true, false, time.Time{}
	case c.refused:
	case c.suspect.IsZero():
		c.suspect = time.Now()
		t.queue.AddAfter(task{right: k}, refusalTime)
	case sent.Sub(c.suspect) < refusalTime:
		t.queue.AddAfter(task{right: k}, refusalTime-time.Since(c.suspect))
	default:
		c.allowed, c.refused, c.suspect = false, true, time.Time{}
	}
	return !c.says(&before), c.refused != before.refused
}

// says reports whether two states come to the same answer.
func (c *consent) says(other *consent) bool {
	return c.allowed == other.allowed && c.refused == other.refused && c.suspect.Equal(other.suspect) && fmt.Sprint(c.err) == fmt.Sprint(other.err)
}

// isFresh says whether the last answer was asked for less than maxAge ago.
func (c *consent) isFresh(maxAge time.Duration) bool {
	return !c.at.IsZero() && time.Since(c.at) < maxAge
}

func (c *consent) registrations() []*Registration {
	all := make([]*Registration, 0, len(c.needed))
	for r := range c.needed {
		all = append(all, r)
	}
	return all
}

// recheck has a right reviewed again whose last answer is too old for a mounted volume, or in doubt.
// The caller holds mu.
func (t *Tracker) recheck(k right, c *consent) {
	if c.isFresh(t.opts.MaxAge) && c.err == nil && c.suspect.IsZero() {
		return
	}
	c.delay, c.due = backoff.Delay{}, true
	t.queue.Add(task{right: k})
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
		if c := t.consents[r.keptRight(ref)]; c != nil && c.due {
			return true
		}
	}
	return false
}

// switchedOff says whether an object is of another namespace and these were switched off
// since the publish.
func (t *Tracker) switchedOff(namespace string, ref volume.Ref) bool {
	return !t.opts.CrossNamespace && ref.Namespace != namespace
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

// isRefused says whether a refusal was confirmed.
func (t *Tracker) isRefused(k right) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consents[k]
	return c != nil && c.refused
}
