// Package nodeidentity finds out whether the API server lets the plugin read as its node, by
// constrained impersonation, and why not.
//
// It owns the questions about the plugin's own token, rights and pod. It must not know what
// is read as the node, nor for whom.
package nodeidentity

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
)

const (
	// attemptTimeout bounds the requests of one attempt together.
	attemptTimeout = 15 * time.Second
	// firstRetry and lastRetry are how long to wait after a failure, with a jitter.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// errUnknown is what Ready returns before the first attempt has ended.
var errUnknown = errors.New("it is not known yet whether the API server lets the plugin read as its node")

// User returns the name of a node's user, which its requests impersonate.
func User(nodeName string) string { return "system:node:" + nodeName }

// SelfSubjectReviews asks who sends a request. A client-go client is one.
type SelfSubjectReviews interface {
	Create(ctx context.Context, review *authenticationv1.SelfSubjectReview, opts metav1.CreateOptions) (*authenticationv1.SelfSubjectReview, error)
}

// SelfSubjectAccessReviews asks for the sender's own rights. A client-go client is one.
type SelfSubjectAccessReviews interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// Pods gets the pods of one namespace. A client-go client is one.
type Pods interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Pod, error)
}

// Options are what a Checker needs. All but Node are required.
type Options struct {
	// NodeName is the name of this node's Node object.
	NodeName string
	// Verbs are those by which ConfigMaps and Secrets are read as the node.
	Verbs []string
	// Node says that the Node itself is read as the node, too.
	Node bool
	// PodsAsNode gets pods as the node.
	PodsAsNode func(namespace string) Pods
	// Reviews, AccessReviews and Version ask as the plugin itself.
	Reviews       SelfSubjectReviews
	AccessReviews SelfSubjectAccessReviews
	Version       func(context.Context) (*version.Info, error)
}

func (o *Options) validate() error {
	var errs []error
	if problems := apivalidation.NameIsDNSSubdomain(o.NodeName, false); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("NodeName: Invalid value: %q: no Node can have this name: %s", o.NodeName, strings.Join(problems, "; ")))
	}
	if len(o.Verbs) == 0 || o.PodsAsNode == nil || o.Reviews == nil || o.AccessReviews == nil || o.Version == nil {
		errs = append(errs, errors.New("Verbs, PodsAsNode, Reviews, AccessReviews, Version: Required value"))
	}
	return errors.Join(errs...)
}

// Checker asks until the API server lets the plugin read as its node. It is safe for
// concurrent use.
type Checker struct {
	opts Options

	mu sync.Mutex
	// problem is why the API server doesn't, nil once it does.
	problem error
}

// New returns a Checker that has asked nothing yet. It fails if opts are not valid.
func New(opts Options) (*Checker, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("node identity options: %w", err)
	}
	return &Checker{opts: opts, problem: errUnknown}, nil
}

// Ready returns nil once the API server lets the plugin read as its node. Until then the error
// says, in one line, what is missing.
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
		logger.Info("The API server lets the plugin read as its node", "user", User(c.opts.NodeName))
	case before.Error() != err.Error():
		logger.Error(err, "Not ready: nothing can be read as the node")
	}
}
