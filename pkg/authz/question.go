package authz

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

// errPanicked replaces the value of a panic, which could hold anything.
var errPanicked = errors.New("the plugin panicked; its log has the stack")

type key struct {
	account volume.Account
	ref     volume.Ref
	verb    string
}

// question is one that was asked, with its last answer.
type question struct {
	// allowed is the answer to the request with the number answered, which was sent at the
	// time of at; the zero time is never.
	allowed  bool
	answered int
	at       time.Time
	// err is why the last request failed, and failedAt is when.
	err      error
	failedAt time.Time
	// request is the one under way, if any. sent counts the requests.
	request *request
	sent    int
	// users counts the callers that use the question.
	users int
}

// request is one that is under way. All callers that wait for it share it. Its context is its
// own, so that a caller that gives up doesn't fail the others.
type request struct {
	number  int
	waiters int
	cancel  context.CancelFunc
	// done is closed when it has ended, and err is why it failed.
	done chan struct{}
	err  error
}

// answer returns an answer to a question that is less than maxAge old or newer than the call.
func (r *Reviewer) answer(ctx context.Context, k key, maxAge time.Duration) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.question(k)
	q.users++
	defer func() { q.users-- }()
	for before := q.sent; ; {
		switch {
		case q.answered > before, isFresh(q.at, maxAge):
			return q.allowed, nil
		case isFresh(q.failedAt, failureAge):
			return false, q.err
		}
		if q.request == nil {
			r.send(ctx, k, q)
		}
		req := q.request
		if err := r.await(ctx, q, req); err != nil {
			return false, fmt.Errorf("wait to %w", whileAsking(k.account, k.ref, k.verb, err))
		}
		if req.err != nil {
			return false, req.err
		}
	}
}

// await waits for the end of a request or of ctx. The caller holds mu, which await releases
// meanwhile. At the end of ctx it returns ctx's error, and ends the request if no other caller
// waits for it.
func (r *Reviewer) await(ctx context.Context, q *question, req *request) error {
	req.waiters++
	r.mu.Unlock()
	var err error
	select {
	case <-req.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.mu.Lock()
	req.waiters--
	if err != nil && req.waiters == 0 && q.request == req {
		req.cancel()
		q.request = nil // the next caller has one of its own
	}
	return err
}

// send starts a request with the values of ctx, but not its end. The caller holds mu.
func (r *Reviewer) send(ctx context.Context, k key, q *question) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	q.sent++
	req := &request{number: q.sent, cancel: cancel, done: make(chan struct{})}
	q.request = req
	go func() {
		defer cancel()
		// The answer is as old as the request: the right may be withdrawn meanwhile.
		asked := time.Now()
		allowed, err := r.ask(ctx, k)
		r.mu.Lock()
		defer r.mu.Unlock()
		defer close(req.done)
		if q.request != req {
			return // every caller gave it up
		}
		q.request = nil
		if err != nil {
			req.err = err
			if !errors.Is(err, ErrNoToken) { // which the next token mends at once
				q.err, q.failedAt = err, time.Now()
			}
			return
		}
		q.allowed, q.answered, q.at = allowed, req.number, asked
	}()
}

// ask calls Ask; a panic is a failure.
func (r *Reviewer) ask(ctx context.Context, k key) (allowed bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			klog.FromContext(ctx).Error(nil, "An access review panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
			allowed, err = false, whileAsking(k.account, k.ref, k.verb, errPanicked)
		}
	}()
	return r.opts.Ask(ctx, k.account, k.ref, k.verb)
}

func isFresh(at time.Time, maxAge time.Duration) bool {
	return !at.IsZero() && time.Since(at) < maxAge
}

// question returns the entry of a question. The caller holds mu.
func (r *Reviewer) question(k key) *question {
	r.sweep()
	q := r.questions[k]
	if q == nil {
		q = &question{}
		r.questions[k] = q
	}
	return q
}

// sweep removes unused questions whose answers are too old, once per MaxAge. The caller holds
// mu.
func (r *Reviewer) sweep() {
	if time.Since(r.swept) < r.opts.MaxAge {
		return
	}
	r.swept = time.Now()
	for k, q := range r.questions {
		if q.users == 0 && !isFresh(q.at, r.opts.MaxAge) {
			delete(r.questions, k)
		}
	}
}
