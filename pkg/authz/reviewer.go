package authz

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// requestTimeout bounds one review.
const requestTimeout = 10 * time.Second

// Options are what a Reviewer needs.
type Options struct {
	Client authorizationclient.SubjectAccessReviewInterface
	// MaxAge is how long an answer is kept.
	MaxAge time.Duration
}

func (o *Options) validate() error {
	if o.Client == nil {
		return errors.New("Client: Required value")
	}
	if o.MaxAge <= 0 {
		return fmt.Errorf("MaxAge: Invalid value: %s: must be positive", o.MaxAge)
	}
	return nil
}

// Reviewer answers for many volumes, whose pods share service accounts and objects: it
// asks the API server again only where an answer is too old, one request per question at a time.
// It is safe for concurrent use and has no goroutine of its own.
//
// mu guards questions and their users; who has taken a question's turn owns its answer.
type Reviewer struct {
	opts Options

	mu        sync.Mutex
	questions map[key]*question
	swept     time.Time
}

type key struct {
	account Account
	ref     volume.Ref
}

// question is one that was asked, with its last answer.
type question struct {
	// turn is held by who reads or replaces the answer.
	turn chan struct{}
	// allowed is what was answered at the time of at; the zero time is never.
	allowed bool
	at      time.Time
	// users is how many hold or await the turn.
	users int
}

// New returns a Reviewer that knows no answer yet. It fails if opts are not valid.
func New(opts Options) (*Reviewer, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("authz options: %w", err)
	}
	return &Reviewer{opts: opts, questions: map[key]*question{}}, nil
}

// Allowed returns whether the service account of a pod may get an object, by an answer to a
// question that is less than maxAge old; 0 asks anew. An error says nothing about the right:
// it is that of MayGet, or of ctx. Errors are not kept.
func (r *Reviewer) Allowed(ctx context.Context, pod volume.Pod, ref volume.Ref, maxAge time.Duration) (bool, error) {
	k := key{AccountOf(pod), ref}
	q := r.use(k)
	defer r.release(q)
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return false, fmt.Errorf("wait to ask whether service account %s may get %s: %w", k.account, ref, ctx.Err())
	}
	if isFresh(q.at, maxAge) {
		return q.allowed, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The answer is as old as the question: the right may go while it is on its way.
	asked := time.Now()
	allowed, err := MayGet(ctx, r.opts.Client, k.account, ref)
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q.allowed, q.at = allowed, asked
	return allowed, nil
}

func isFresh(at time.Time, maxAge time.Duration) bool {
	return !at.IsZero() && time.Since(at) < maxAge
}

// use returns the entry of a question, and keeps it until release.
func (r *Reviewer) use(k key) *question {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep()
	q := r.questions[k]
	if q == nil {
		q = &question{turn: make(chan struct{}, 1)}
		r.questions[k] = q
	}
	q.users++
	return q
}

func (r *Reviewer) release(q *question) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q.users--
}

// sweep forgets what nobody uses and whose answer is too old, once per MaxAge. The
// caller holds mu, under which answers are replaced too.
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
