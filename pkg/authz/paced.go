package authz

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// Reviews sends reviews of one kind: SubjectAccessReviews, SelfSubjectAccessReviews or
// SelfSubjectReviews. A client-go client is one.
type Reviews[T any] interface {
	Create(ctx context.Context, review T, opts metav1.CreateOptions) (T, error)
}

// Pace holds the pauses that all reviews of a node share. While the API server is in trouble,
// hundreds of questions send one review at a time, and pause for as long as it asks. Where
// reviews carry pods' tokens, too many requests of one account, or one without an answer, pause the
// reviews of that account only: the API server counts each account's for itself and has them wait in
// turn, and none must hold up another one's. An account of which no token is accepted has a pause too,
// which a new token ends. It is safe for concurrent use.
type Pace struct {
	node   backoff.Gate
	tokens *Tokens
}

// NewPace returns a Pace without a pause. tokens are those that the reviews carry; nil if all
// have one credential.
func NewPace(tokens *Tokens) *Pace {
	p := &Pace{tokens: tokens}
	if tokens != nil {
		p.node.Closes = concernsAllAccounts
	}
	return p
}

// concernsAllAccounts tells whether the failure of one account's review concerns the others'.
func concernsAllAccounts(err error) bool {
	return backoff.ConcernsAll(err) && !apierrors.IsTooManyRequests(err) && !errors.Is(err, ErrNoToken) && !errors.As(err, new(unansweredError))
}

// concernsAccount tells whether the failure of a review concerns all reviews of the account.
func concernsAccount(err error) bool {
	return apierrors.IsTooManyRequests(err) || errors.As(err, new(unansweredError))
}

// unansweredError is the failure of a review that had no answer in its time.
type unansweredError struct{ error }

func (e unansweredError) Unwrap() error { return e.error }

// do sends a request, or returns at once the failure of an earlier one for which it must not be
// sent.
func (p *Pace) do(ctx context.Context, request func() error) error {
	account := requests.MetaOf(ctx).Account
	if p.tokens == nil || account == (volume.Account{}) {
		return p.node.Do(request)
	}
	pauses := p.tokens.pausesOf(account)
	inTime := func() error {
		err := request()
		if err != nil && ctx.Err() != nil {
			err = unansweredError{err}
		}
		return err
	}
	send := func() error { return pauses.busy.Do(func() error { return p.node.Do(inTime) }) }
	if requests.MetaOf(ctx).Alone {
		return send() // the other tokens of the account say nothing of this one
	}
	return pauses.rejected.Do(send)
}

// Paced sends the reviews of a client at a Pace. It is safe for concurrent use.
type Paced[T any] struct {
	client Reviews[T]
	pace   *Pace
}

// NewPaced returns a client that sends reviews by another one. That one must return a
// Retry-After as its error instead of obeying it.
func NewPaced[T any](client Reviews[T], pace *Pace) *Paced[T] {
	return &Paced[T]{client, pace}
}

// Create sends a review, or returns at once the failure of an earlier one for which it must
// not be sent.
func (p *Paced[T]) Create(ctx context.Context, review T, opts metav1.CreateOptions) (answer T, err error) {
	err = p.pace.do(ctx, func() error {
		answer, err = p.client.Create(ctx, review, opts)
		return err
	})
	return answer, err
}
