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

const (
	// requestTimeout bounds one review.
	requestTimeout = 10 * time.Second
	// failureAge is how long a failed review is not sent again. A hundred volumes may ask the
	// same question.
	failureAge = time.Second
)

// Options are what a Reviewer needs.
type Options struct {
	// Ask asks the API server.
	Ask Ask
	// Verbs are the rights to each object that a new volume's pod must have. Kept is the one
	// of them that it must keep while the volume is mounted.
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

// Reviewer answers for many volumes, whose pods share service accounts and objects. It asks the
// API server again only if an answer is too old. It sends one request per question at a time,
// and all callers share its answer or its failure. It is safe for concurrent use. Its
// goroutines are the requests under way. Each ends when no caller waits for it.
//
// mu guards questions and what is below them.
type Reviewer struct {
	opts Options

	mu        sync.Mutex
	questions map[key]*question
	swept     time.Time
}

// New returns a Reviewer that knows no answer yet. It fails if opts are not valid.
func New(opts Options) (*Reviewer, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("authz options: %w", err)
	}
	return &Reviewer{opts: opts, questions: map[key]*question{}}, nil
}

// Needs names the rights that a new volume's pod must have, as Phrase does.
func (r *Reviewer) Needs() string { return Phrase(r.opts.Verbs) }

// Phrase names verbs, of which there is at least one, for a person: "get", or "get, list and
// watch".
func Phrase(verbs []string) string {
	if len(verbs) == 1 {
		return verbs[0]
	}
	last := len(verbs) - 1
	return strings.Join(verbs[:last], ", ") + " and " + verbs[last]
}

// Admitted returns whether the service account of a new volume's pod has all the rights to an
// object that it needs. The answers are less than maxAge old; 0 asks again. An error says
// nothing about the rights: it is that of the Ask, at most failureAge old, or of ctx.
func (r *Reviewer) Admitted(ctx context.Context, pod volume.Pod, ref volume.Ref, maxAge time.Duration) (bool, error) {
	for _, verb := range r.opts.Verbs {
		allowed, err := r.answer(ctx, key{pod.Account(), ref, verb}, maxAge)
		if err != nil || !allowed {
			return false, err
		}
	}
	return true, nil
}

// Allowed is Admitted for a mounted volume. It asks about the one right that the pod must keep.
func (r *Reviewer) Allowed(ctx context.Context, pod volume.Pod, ref volume.Ref, maxAge time.Duration) (bool, error) {
	return r.answer(ctx, key{pod.Account(), ref, r.opts.Kept}, maxAge)
}
