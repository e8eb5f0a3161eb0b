// Package permissions finds out whether the API server grants the plugin the rights that it needs, and which ones are missing.
//
// It owns the questions and their schedule: about the rights of the plugin's own account, and whether it may read with its node's rights.
// It must not know whose objects are read, or for whom.
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
	// attemptTimeout limits all requests of one attempt together.
	attemptTimeout = 15 * time.Second
	// The plugin asks again after a refusal, but not before refusalPause, and otherwise after recheck, with jitter. On a cluster of 5,000
	// nodes, more frequent questions would load the API server.
	refusalPause = 10 * time.Second
	recheck      = 10 * time.Minute
)

// errUnknown is the result of Ready before the first attempt has ended.
var errUnknown = errors.New("it is not known yet which rights the API server gives the plugin")

// SelfSubjectAccessReviews asks for the sender's own rights. A client-go client implements it.
type SelfSubjectAccessReviews interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// Options are the options of a Checker.
type Options struct {
	// Identity is the value of the flag --identity, for texts.
	Identity string
	// Needs are the rights of the plugin's account that are required. Wants are the rights without which it works, with a warning. Reviews
	// asks for both.
	Needs, Wants []authorizationv1.ResourceAttributes
	Reviews      SelfSubjectAccessReviews
	// Node checks whether the plugin may read with its node's rights. It is nil if the plugin does not do that.
	Node *Node
	// Refused gets a signal when a request of the plugin's account was refused. The rights are then checked again soon.
	Refused <-chan struct{}
}

// Checker checks the plugin's rights again and again. It is safe for concurrent use.
type Checker struct {
	opts Options
	// granted is closed when the plugin has its rights for the first time.
	granted chan struct{}

	mu sync.Mutex
	// problem says why the plugin cannot work, or is nil. missing are the rights that it lacks. wanted are those of missing without which
	// it still works.
	problem         error
	missing, wanted []string
	// answered means that the API server has answered once.
	answered bool
}

// New returns a Checker that has not asked yet. It fails if a required option is missing.
func New(opts Options) (*Checker, error) {
	if opts.Identity == "" || len(opts.Needs) == 0 || opts.Reviews == nil || opts.Refused == nil {
		return nil, errors.New("rights options: Identity, Needs, Reviews, Refused: Required value")
	}
	return &Checker{opts: opts, granted: make(chan struct{}), problem: errUnknown}, nil
}

// Ready returns nil if the plugin had its rights at the API server's last answer, or else what is wrong, in one line.
func (c *Checker) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Rights returns the names of the rights that are checked, such as "get of pods".
func (c *Checker) Rights() []string {
	var names []string
	for _, rights := range [][]authorizationv1.ResourceAttributes{c.opts.Needs, c.opts.Wants} {
		for i := range rights {
			names = append(names, nameOf(&rights[i]))
		}
	}
	return names
}

func nameOf(need *authorizationv1.ResourceAttributes) string {
	return need.Verb + " of " + need.Resource
}

// Missing returns the names of the rights that the plugin lacked at the API server's last answer.
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

// Run checks the rights until ctx ends: with growing pauses while something is wrong, and then after refusals and from time to time. It
// logs changes. It must be called once.
func (c *Checker) Run(ctx context.Context) {
	retries := newRetries()
	for ctx.Err() == nil {
		select {
		case <-c.opts.Refused: // earlier refusals say nothing new
		default:
		}
		a, err := c.ask(ctx)
		c.note(ctx, a, err)
		if a.problem != nil || err != nil {
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

// pause waits for a time, for the end of ctx, or for a signal.
func pause(ctx context.Context, d time.Duration, signal <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-signal:
	}
}

// answer is the result of one attempt: what is wrong, in one line, or nil, and the names of the missing rights among those that the plugin
// needs and wants.
type answer struct {
	problem        error
	needed, wanted []string
}

// ask asks all questions. An error says nothing about rights.
func (c *Checker) ask(ctx context.Context) (a answer, err error) {
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), attemptTimeout)
	defer cancel()
	if c.opts.Node != nil {
		a.problem, err = c.opts.Node.ask(ctx)
		if explained := errors.As(a.problem, new(refusedError)); err != nil || a.problem != nil && !explained {
			return a, err
		}
	}
	if a.needed, err = c.lacks(ctx, c.opts.Needs); err != nil {
		return answer{}, err
	}
	if a.wanted, err = c.lacks(ctx, c.opts.Wants); err != nil {
		return answer{}, err
	}
	if len(a.needed) > 0 {
		a.problem = fmt.Errorf("the plugin's account lacks rights in all namespaces that --identity=%s needs: %s: grant them, or choose another identity",
			c.opts.Identity, strings.Join(a.needed, ", "))
	}
	return a, nil
}

// lacks returns the names of those rights that the API server doesn't grant the plugin.
func (c *Checker) lacks(ctx context.Context, rights []authorizationv1.ResourceAttributes) (missing []string, err error) {
	for i := range rights {
		right := &rights[i]
		review, err := c.opts.Reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask whether the plugin may %s %s: %w", right.Verb, right.Resource, err)
		}
		if !review.Status.Allowed {
			missing = append(missing, nameOf(right))
		}
	}
	return missing, nil
}

// note stores an answer, and logs it if it is new. After the first answer, a failed attempt changes nothing.
func (c *Checker) note(ctx context.Context, a answer, err error) {
	c.mu.Lock()
	if ctx.Err() != nil || err != nil && c.answered {
		c.mu.Unlock()
		return
	}
	before, wantedBefore := c.problem, c.wanted
	problem := cmp.Or(a.problem, err)
	c.problem, c.missing, c.wanted, c.answered = problem, slices.Concat(a.needed, a.wanted), a.wanted, err == nil
	c.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
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
	if len(a.wanted) > 0 && !slices.Equal(a.wanted, wantedBefore) {
		logger.Info("Warning: the plugin's account lacks rights: volumes work, but what needs these fails", "rights", a.wanted)
	}
}
