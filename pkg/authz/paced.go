package authz

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/backoff"
)

// Reviews sends reviews of one kind: SubjectAccessReviews, SelfSubjectAccessReviews or
// SelfSubjectReviews. A client-go client is one.
type Reviews[T any] interface {
	Create(ctx context.Context, review T, opts metav1.CreateOptions) (T, error)
}

// Paced sends the reviews of a client as a Gate lets it. While the API server is in trouble,
// hundreds of questions then send one review at a time, and pause for as long as it asks. All
// clients of a node share one Gate. It is safe for concurrent use.
type Paced[T any] struct {
	client Reviews[T]
	gate   *backoff.Gate
}

// NewPaced returns a client that sends reviews by another one. That one must return a
// Retry-After as its error instead of obeying it.
func NewPaced[T any](client Reviews[T], gate *backoff.Gate) *Paced[T] {
	return &Paced[T]{client, gate}
}

// Create sends a review, or returns at once the failure of an earlier one for which it must
// not be sent.
func (p *Paced[T]) Create(ctx context.Context, review T, opts metav1.CreateOptions) (answer T, err error) {
	err = p.gate.Do(func() error {
		answer, err = p.client.Create(ctx, review, opts)
		return err
	})
	return answer, err
}
