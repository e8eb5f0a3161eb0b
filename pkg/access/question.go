package access

import (
	"context"
	"fmt"
	"time"
)

// questionTime bounds one question: its worker is wanted by other ones.
const questionTime = 10 * time.Second

// question is one that is under way. All who wait for it share it. Its context is its
// own, so that one that gives up doesn't fail the others.
type question struct {
	waiters int
	cancel  context.CancelFunc
	// done is closed when it has ended, and err is why it failed.
	done chan struct{}
	err  error
}

// ask says whether an account has a right, by an answer whose question was sent less than maxAge ago, or after the
// call. It sends one question at a time about each right. An error says nothing about the right.
func (t *Tracker) ask(ctx context.Context, k right, maxAge time.Duration) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.consent(k)
	c.users++
	defer func() {
		c.users--
		t.release(k, c)
	}()
	for called := time.Now(); ; {
		if c.isFresh(maxAge) || !c.at.Before(called) {
			return c.yes, nil
		}
		q := c.question
		if q == nil {
			q = t.send(ctx, k, c)
		}
		if err := t.await(ctx, c, q); err != nil {
			return false, fmt.Errorf("wait to ask whether service account %s may %s %s: %w", k.account, k.verb, k.ref, err)
		}
		if q.err != nil {
			return false, q.err
		}
	}
}

// await waits for the end of a question or of ctx. The caller holds mu, which await releases
// meanwhile. At the end of ctx it returns ctx's error, and ends the question if nobody else
// waits for it.
func (t *Tracker) await(ctx context.Context, c *consent, q *question) error {
	q.waiters++
	t.mu.Unlock()
	var err error
	select {
	case <-q.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	t.mu.Lock()
	q.waiters--
	if err != nil && q.waiters == 0 && c.question == q {
		q.cancel()
		c.question = nil // the next caller has one of its own
	}
	return err
}

// send sends a question with the values of ctx, but not its end. The caller holds mu.
func (t *Tracker) send(ctx context.Context, k right, c *consent) *question {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), questionTime)
	q := &question{cancel: cancel, done: make(chan struct{})}
	c.question = q
	go func() {
		defer cancel()
		sent := time.Now()
		yes, err := guarded(ctx, func() (bool, error) {
			if t.switchedOff(k.account.Namespace, k.ref) {
				return false, nil
			}
			return t.opts.Reviews.Ask(ctx, k.account, k.ref, k.verb)
		})
		t.answered(k, c, q, yes, sent, err)
	}()
	return q
}

// answered takes in the end of a question, and tells those who need the right.
func (t *Tracker) answered(k right, c *consent, q *question, yes bool, sent time.Time, err error) {
	defer close(q.done)
	t.mu.Lock()
	if c.question != q { // everybody gave it up
		t.mu.Unlock()
		return
	}
	c.question = nil
	q.err = err
	news, refusal := false, false
	if err == nil {
		news, refusal = t.takeIn(k, c, yes, sent)
	}
	all := c.registrations()
	t.mu.Unlock()
	if refusal {
		for _, r := range all {
			r.reregister()
		}
	}
	if news && len(all) > 0 {
		t.opts.Changed(k.account, k.ref)
	}
}

// consent returns what is known of a right. The caller holds mu, and calls release once it doesn't need it.
func (t *Tracker) consent(k right) *consent {
	c := t.consents[k]
	if c == nil {
		c = &consent{needed: map[*Registration]struct{}{}}
		t.consents[k] = c
	}
	return c
}

// release has an answer forgotten that nobody needs, once it is too old for a new volume. The caller
// holds mu.
func (t *Tracker) release(k right, c *consent) {
	if len(c.needed) == 0 && c.users == 0 {
		t.queue.AddAfter(task{right: k}, admitAge)
	}
}

// forget forgets what is known of a right, if it was released. The caller holds mu.
func (t *Tracker) forget(k right, c *consent) {
	if len(c.needed) == 0 && c.users == 0 && !c.isFresh(admitAge) {
		delete(t.consents, k)
	}
}
