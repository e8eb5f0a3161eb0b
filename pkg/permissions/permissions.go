// Package permissions finds out whether the API server gives the plugin the rights that it needs, and what is missing if not.
//
// It owns how often that is asked, and the questions: about the rights of the plugin's own account, and whether it may
// read as its node. It must not know whose objects are read, nor for whom.
package permissions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
)

const (
	// attemptTimeout bounds the requests of one attempt together.
	attemptTimeout = 15 * time.Second
	// The plugin asks again after a refusal, but not before refusalPause, and else after recheck, with a jitter. A question
	// more often than that, of each of 5,000 nodes, would load the API server.
	refusalPause = 10 * time.Second
	recheck      = 10 * time.Minute
)

// errUnknown is what Ready returns before the first attempt has ended.
var errUnknown = errors.New("it is not known yet which rights the API server gives the plugin")

// SelfSubjectAccessReviews asks for the sender's own rights. A client-go client is one.
type SelfSubjectAccessReviews interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// Options are what a Checker needs.
type Options struct {
	// Identity is the value of the flag --identity, for texts.
	Identity string
	// Needs are the rights of the plugin's account, and Reviews asks for them.
	Needs   []authorizationv1.ResourceAttributes
	Reviews SelfSubjectAccessReviews
	// Node asks whether the plugin may read as its node; nil where it need not.
	Node *Node
	// Refused gets a signal when a request of the plugin's account was refused: the rights are asked for again soon.
	Refused <-chan struct{}
}

// Checker asks again and again whether the plugin has its rights. It is safe for concurrent use.
type Checker struct {
	opts Options
	// granted is closed when the plugin has its rights for the first time.
	granted chan struct{}

	mu sync.Mutex
	// problem is why the plugin can't work, nil if it can, and missing what it lacks.
	problem error
	missing []string
	// answered says that the API server has answered once.
	answered bool
}

// New returns a Checker that has asked nothing yet. It fails if an option is missing.
func New(opts Options) (*Checker, error) {
	if opts.Identity == "" || len(opts.Needs) == 0 || opts.Reviews == nil || opts.Refused == nil {
		return nil, errors.New("rights options: Identity, Needs, Reviews, Refused: Required value")
	}
	return &Checker{opts: opts, granted: make(chan struct{}), problem: errUnknown}, nil
}

// Ready returns nil if the plugin had its rights when the API server last answered, else, in one line, what is wrong.
func (c *Checker) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Needs returns the names of the rights that the plugin needs, such as "get of pods".
func (c *Checker) Needs() []string {
	names := make([]string, 0, len(c.opts.Needs))
	for i := range c.opts.Needs {
		names = append(names, nameOf(&c.opts.Needs[i]))
	}
	return names
}

func nameOf(need *authorizationv1.ResourceAttributes) string {
	return need.Verb + " of " + need.Resource
}

// Missing returns the names of those that it lacked when the API server last answered.
func (c *Checker) Missing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.missing)
}

// Await returns when the plugin has had its rights once, or when ctx ends.
func (c *Checker) Await(ctx context.Context) {
	select {
	case <-c.granted:
	case <-ctx.Done():
	}
}

// Run asks until ctx ends: less and less often while something is wrong, then after refusals and now and then. It logs
// what is wrong when that changes. It is called once.
func (c *Checker) Run(ctx context.Context) {
	retries := newRetries()
	for ctx.Err() == nil {
		select {
		case <-c.opts.Refused: // what was refused before says nothing new
		default:
		}
		missing, problem, err := c.ask(ctx)
		c.note(ctx, missing, problem, err)
		if problem != nil || err != nil {
			pause(ctx, retries.Step(), nil)
			continue
		}
		retries = newRetries()
		pause(ctx, refusalPause, nil)
		pause(ctx, wait.Jitter(recheck, 0.2)-refusalPause, c.opts.Refused)
	}
}

func newRetries() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Cap: 30 * time.Second, Steps: math.MaxInt}
}

// pause waits for so long, or until ctx ends, or for a signal.
func pause(ctx context.Context, d time.Duration, signal <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-signal:
	}
}

// ask returns in one line what is wrong, nil for nothing, and the names of the rights that are missing, if that is it. An
// err says nothing about rights.
func (c *Checker) ask(ctx context.Context) (missing []string, problem, err error) {
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), attemptTimeout)
	defer cancel()
	if c.opts.Node != nil {
		problem, err = c.opts.Node.ask(ctx)
		if explained := errors.As(problem, new(refusedError)); err != nil || problem != nil && !explained {
			return nil, problem, err
		}
	}
	for i := range c.opts.Needs {
		need := &c.opts.Needs[i]
		review, err := c.opts.Reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: need},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, nil, fmt.Errorf("ask whether the plugin may %s %s: %w", need.Verb, need.Resource, err)
		}
		if !review.Status.Allowed {
			missing = append(missing, nameOf(need))
		}
	}
	if len(missing) > 0 {
		problem = fmt.Errorf("the plugin's account lacks rights in all namespaces that --identity=%s needs: %s: grant them, or choose another identity",
			c.opts.Identity, strings.Join(missing, ", "))
	}
	return missing, problem, nil
}

// note keeps an answer, and logs it if it is news. None at all changes nothing, once there was one.
func (c *Checker) note(ctx context.Context, missing []string, problem, err error) {
	c.mu.Lock()
	if ctx.Err() != nil || err != nil && c.answered {
		c.mu.Unlock()
		return
	}
	before := c.problem
	problem = cmp.Or(problem, err)
	c.problem, c.missing, c.answered = problem, missing, err == nil
	c.mu.Unlock()
	switch logger := klog.FromContext(ctx); {
	case problem == nil && before != nil:
		select {
		case <-c.granted:
		default:
			close(c.granted)
		}
		logger.Info("The API server lets the plugin work", "identity", c.opts.Identity)
	case problem != nil && (before == nil || before.Error() != problem.Error()):
		logger.Error(problem, "Not ready: the plugin can't work", "identity", c.opts.Identity)
	}
}
