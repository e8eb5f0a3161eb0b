package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// requestTimeout bounds one review.
const requestTimeout = 10 * time.Second

// Options are what a Reviewer needs.
type Options struct {
	// Ask asks the API server.
	Ask Ask
	// Verbs are the rights that a new volume's pod must have to each object, and Kept is the
	// one of them that it must keep while the volume is mounted.
	Verbs []string
	Kept  string
	// MaxAge is how long an answer is kept.
	MaxAge time.Duration
}

func (o *Options) validate() error {
	if o.Ask == nil {
		return errors.New("Ask: Required value")
	}
	if !slices.Contains(o.Verbs, o.Kept) {
		return fmt.Errorf("Kept: Invalid value: %q: must be one of Verbs, %q", o.Kept, o.Verbs)
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
	account volume.Account
	ref     volume.Ref
	verb    string
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

// Needs names the rights that a new volume's pod must have, for a person: "get", or "get,
// list and watch".
func (r *Reviewer) Needs() string {
	verbs := r.opts.Verbs
	if len(verbs) == 1 {
		return verbs[0]
	}
	last := len(verbs) - 1
	return strings.Join(verbs[:last], ", ") + " and " + verbs[last]
}

// Admitted returns whether the service account of a new volume's pod has all rights to an
// object that it needs, by answers to questions that are less than maxAge old; 0 asks anew.
// An error says nothing about the rights: it is that of the Ask, or of ctx. Errors are not
// kept.
func (r *Reviewer) Admitted(ctx context.Context, pod volume.Pod, ref volume.Ref, maxAge time.Duration) (bool, error) {
	for _, verb := range r.opts.Verbs {
		allowed, err := r.answer(ctx, key{pod.Account(), ref, verb}, maxAge)
		if err != nil || !allowed {
			return false, err
		}
	}
	return true, nil
}

// Allowed is Admitted for a volume that is mounted, and asks about the one right that its
// pod must keep.
func (r *Reviewer) Allowed(ctx context.Context, pod volume.Pod, ref volume.Ref, maxAge time.Duration) (bool, error) {
	return r.answer(ctx, key{pod.Account(), ref, r.opts.Kept}, maxAge)
}

// answer returns an answer to a question that is less than maxAge old.
func (r *Reviewer) answer(ctx context.Context, k key, maxAge time.Duration) (bool, error) {
	q := r.use(k)
	defer r.release(q)
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return false, fmt.Errorf("wait to %w", whileAsking(k.account, k.ref, k.verb, ctx.Err()))
	}
	if isFresh(q.at, maxAge) {
		return q.allowed, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The answer is as old as the question: the right may go while it is on its way.
	asked := time.Now()
	allowed, err := r.opts.Ask(ctx, k.account, k.ref, k.verb)
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
