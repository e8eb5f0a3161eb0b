// Package rights finds out whether the API server lets the plugin read what it is to show, and what
// is missing if not.
//
// It owns how often that is asked, and the questions about the rights of the plugin's own account. It
// must not know whose objects are read, nor for whom.
package rights

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// attemptTimeout bounds the requests of one attempt together.
	attemptTimeout = 15 * time.Second
	// firstRetry and lastRetry are how long to wait after a failure, with a jitter.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// errUnknown is what Ready returns before the first attempt has ended.
var errUnknown = errors.New("it is not known yet whether the API server lets the plugin read")

// Checker asks until the API server lets the plugin read. It is safe for concurrent use.
type Checker struct {
	ask func(context.Context) error
	as  string

	mu sync.Mutex
	// problem is why the API server doesn't, nil once it does.
	problem error
}

// New returns a Checker that has asked nothing yet. ask returns nil if the API server lets the plugin
// read, else, in one line, what is missing; as says in the log by which rights, such as "its node".
func New(as string, ask func(context.Context) error) *Checker {
	return &Checker{ask: ask, as: as, problem: errUnknown}
}

// Ready returns nil once the API server lets the plugin read. Until then the error says, in one
// line, what is missing.
func (c *Checker) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Run asks until Ready returns nil or ctx ends, less and less often. It logs what is missing
// when that changes. It is called once.
func (c *Checker) Run(ctx context.Context) {
	backoff := wait.Backoff{Duration: firstRetry, Factor: 2, Jitter: 1, Cap: lastRetry, Steps: math.MaxInt}
	for {
		err := c.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		c.note(ctx, err)
		if err == nil {
			return
		}
		retry := time.NewTimer(backoff.Step())
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return
		}
	}
}

func (c *Checker) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), attemptTimeout)
	defer cancel()
	return c.ask(ctx)
}

// note keeps the outcome of an attempt.
func (c *Checker) note(ctx context.Context, err error) {
	c.mu.Lock()
	before := c.problem
	c.problem = err
	c.mu.Unlock()
	switch logger := klog.FromContext(ctx); {
	case err == nil:
		logger.Info("The API server lets the plugin read as " + c.as)
	case before.Error() != err.Error():
		logger.Error(err, "Not ready: the plugin can't read as "+c.as)
	}
}

// SelfSubjectAccessReviews asks for the sender's own rights. A client-go client is one.
type SelfSubjectAccessReviews interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// Lacking asks for each of the rights, and returns those that the sender has not, as "get of pods".
func Lacking(ctx context.Context, reviews SelfSubjectAccessReviews, needs []authorizationv1.ResourceAttributes) ([]string, error) {
	var lacking []string
	for i := range needs {
		review, err := reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &needs[i]},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask whether the plugin may %s %s: %w", needs[i].Verb, needs[i].Resource, err)
		}
		if !review.Status.Allowed {
			lacking = append(lacking, needs[i].Verb+" of "+needs[i].Resource)
		}
	}
	return lacking, nil
}

// OfObjects returns the rights to read ConfigMaps and Secrets of all namespaces by verbs, each of
// which prefix starts.
func OfObjects(prefix string, verbs []string) []authorizationv1.ResourceAttributes {
	var all []authorizationv1.ResourceAttributes
	for _, kind := range volume.Kinds() {
		for _, verb := range verbs {
			all = append(all, authorizationv1.ResourceAttributes{Verb: prefix + verb, Resource: kind.Resource()})
		}
	}
	return all
}

// NewOfAccount returns a Checker of whether the plugin's own account has rights.
func NewOfAccount(reviews SelfSubjectAccessReviews, needs []authorizationv1.ResourceAttributes) *Checker {
	return New("itself", func(ctx context.Context) error {
		lacking, err := Lacking(ctx, reviews, needs)
		if err == nil && len(lacking) > 0 {
			err = fmt.Errorf("the plugin's account lacks rights in all namespaces that --identity=plugin needs: %s: grant them, or choose another identity", strings.Join(lacking, ", "))
		}
		return err
	})
}
