// Package rights finds out whether the API server gives the plugin the rights that it needs, and what is
// missing if not.
//
// It owns how often that is asked, and the questions about the rights of the plugin's own account. It
// must not know whose objects are read, nor for whom.
package rights

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
)

const (
	// attemptTimeout bounds the requests of one attempt together.
	attemptTimeout = 15 * time.Second
	// firstRetry and lastRetry are how long to wait after a failure, with a jitter.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// The plugin asks again after a refusal, but not before refusalPause, and else after recheck, with a
	// jitter. A question more often than that, of each of 5,000 nodes, would load the API server.
	refusalPause  = 10 * time.Second
	recheck       = 10 * time.Minute
	recheckJitter = 0.2
)

// errUnknown is what Ready returns before the first attempt has ended.
var errUnknown = errors.New("it is not known yet which rights the API server gives the plugin")

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

// Options are what a Checker needs. All are required.
type Options struct {
	// As says in the log by which rights the plugin works, such as "its node".
	As string
	// Needs are the names of all rights that Ask may return.
	Needs []string
	// Ask returns nil if the plugin has its rights, else in one line what is wrong, and the names of the
	// rights that are missing, if that is it. An error that NoAnswer has marked says nothing about rights.
	Ask func(context.Context) (missing []string, err error)
	// Refusals tell when to ask again.
	Refusals *Refusals
}

func (o *Options) validate() error {
	if o.As == "" || len(o.Needs) == 0 || o.Ask == nil || o.Refusals == nil {
		return errors.New("rights options: As, Needs, Ask, Refusals: Required value")
	}
	return nil
}

// New returns a Checker that has asked nothing yet. It fails if an option is missing.
func New(opts Options) (*Checker, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Checker{opts: opts, granted: make(chan struct{}), problem: errUnknown}, nil
}

// Ready returns nil if the plugin had its rights when the API server last answered, else, in one line,
// what is wrong.
func (c *Checker) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Needs returns the names of the rights that the plugin needs.
func (c *Checker) Needs() []string { return slices.Clone(c.opts.Needs) }

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

// Run asks until ctx ends: less and less often while something is wrong, then after refusals and now and
// then. It logs what is wrong when that changes. It is called once.
func (c *Checker) Run(ctx context.Context) {
	retries := newRetries()
	for ctx.Err() == nil {
		c.opts.Refusals.forget()
		if err := c.attempt(ctx); err != nil {
			pause(ctx, retries.Step(), nil)
			continue
		}
		retries = newRetries()
		pause(ctx, refusalPause, nil)
		pause(ctx, wait.Jitter(recheck, recheckJitter)-refusalPause, c.opts.Refusals.heard)
	}
}

func newRetries() wait.Backoff {
	return wait.Backoff{Duration: firstRetry, Factor: 2, Jitter: 1, Cap: lastRetry, Steps: math.MaxInt}
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

// attempt asks once, and keeps the answer.
func (c *Checker) attempt(ctx context.Context) error {
	asking, cancel := context.WithTimeout(clientlog.Context(ctx), attemptTimeout)
	defer cancel()
	missing, err := c.opts.Ask(asking)
	if ctx.Err() == nil {
		c.note(ctx, missing, err)
	}
	return err
}

// note keeps an answer. None at all changes nothing, once there was one.
func (c *Checker) note(ctx context.Context, missing []string, err error) {
	c.mu.Lock()
	before, answered := c.problem, c.answered
	if answered && isNoAnswer(err) {
		c.mu.Unlock()
		return
	}
	c.problem, c.missing, c.answered = err, missing, !isNoAnswer(err)
	c.mu.Unlock()
	switch logger := klog.FromContext(ctx); {
	case err == nil && before != nil:
		if !isClosed(c.granted) {
			close(c.granted)
		}
		logger.Info("The API server lets the plugin work as " + c.opts.As)
	case err != nil && (before == nil || before.Error() != err.Error()):
		logger.Error(err, "Not ready: the plugin can't work as "+c.opts.As)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// noAnswerError is the error of a request that says nothing about the plugin's rights.
type noAnswerError struct{ error }

func (e noAnswerError) Unwrap() error { return e.error }

// NoAnswer marks the error of a request, unless it is a refusal, as one that says nothing about the
// plugin's rights. It has the text of err.
func NoAnswer(err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	return noAnswerError{err}
}

func isNoAnswer(err error) bool {
	var e noAnswerError
	return errors.As(err, &e)
}
