package taint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
)

const (
	// attemptTimeout bounds the two requests of one attempt together.
	attemptTimeout = 10 * time.Second
	// firstRetry and lastRetry are how long to wait after a failure, with a jitter.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 30 * time.Second
	// firstLook and lastLook are how long to wait until the Node is read again, with a
	// jitter. The last look comes at most lookFor after the registration.
	firstLook = time.Second
	lastLook  = 30 * time.Second
	lookFor   = 10 * time.Minute
	growth    = 2
	jitter    = 0.2
)

// Nodes is what a Remover does with Node objects. A client's CoreV1().Nodes() is one.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, form types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Options are what a Remover needs. All are required.
type Options struct {
	Nodes Nodes
	// NodeName is the Node's name.
	NodeName string
	Taint    Taint
}

// Remover removes a taint from this node each time that the kubelet confirms the driver's
// registration. A Node that was deleted and created again has the taint again, and its kubelet
// registers the driver again.
//
// Some clouds add a node pool's taints only after the node has registered its drivers. So the
// Node is read again for ten minutes. A watch would be faster, but it would need one more
// right, and RBAC can't limit that to the own Node.
//
// It has no goroutine of its own, only the one that calls Run. Registered is safe for
// concurrent use. One that is called before Run counts when Run begins.
type Remover struct {
	opts       Options
	registered atomic.Bool
	// changed has room for one signal that registered has changed.
	changed chan struct{}
}

// NewRemover returns a Remover that does nothing until Run is called. It fails if an
// option is missing.
func NewRemover(opts Options) (*Remover, error) {
	if opts.Nodes == nil || opts.NodeName == "" || opts.Taint.key == "" {
		return nil, errors.New("taint options: Nodes, NodeName and Taint are required")
	}
	return &Remover{opts: opts, changed: make(chan struct{}, 1)}, nil
}

// Registered says whether the kubelet has confirmed or refused the registration. After a
// refusal the Node is left alone. Registered never blocks.
func (r *Remover) Registered(registered bool) {
	r.registered.Store(registered)
	select {
	case r.changed <- struct{}{}:
	default: // a signal waits already, and its receiver sees the new state
	}
}

// Run removes the taint whenever it is time, until ctx ends. It is called once.
func (r *Remover) Run(ctx context.Context) {
	var next <-chan time.Time
	var s *search
	for {
		select {
		case <-r.changed:
			s = r.newSearch()
		case <-next:
		case <-ctx.Done():
			return
		}
		next = nil
		if r.registered.Load() {
			next = s.look(ctx)
		}
	}
}

// search removes the taint after one registration.
type search struct {
	*Remover
	ends time.Time
	// looked says that the Node has been read once.
	looked bool
	// failed says that the last attempt failed.
	failed         bool
	looks, retries wait.Backoff
}

func (r *Remover) newSearch() *search {
	return &search{
		Remover: r, ends: time.Now().Add(lookFor),
		looks:   backoff(firstLook, lastLook),
		retries: backoff(firstRetry, lastRetry),
	}
}

// backoff returns a wait that grows from first to last and stays there.
func backoff(first, last time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Factor: growth, Jitter: jitter, Steps: math.MaxInt32, Cap: last}
}

// look makes one attempt and returns when the next one is due; nil if none is. A failure is
// retried without an end, and the first of consecutive failures is logged.
func (s *search) look(ctx context.Context) <-chan time.Time {
	logger := klog.FromContext(ctx).WithValues("node", s.opts.NodeName, "taint", s.opts.Taint)
	removed, err := s.try(ctx)
	if err != nil {
		if !s.failed && ctx.Err() == nil {
			logger.Error(err, "Removing the startup taint failed, trying again")
		}
		s.failed = true
		return time.After(s.retries.Step())
	}
	if removed {
		logger.Info("Removed the startup taint")
	} else if !s.looked {
		logger.V(2).Info("The node has no startup taint")
	}
	s.looked, s.failed, s.retries = true, false, backoff(firstRetry, lastRetry)
	pause := s.looks.Step()
	if time.Now().Add(pause).After(s.ends) {
		return nil
	}
	return time.After(pause)
}

// try reads the Node from the API server's cache and removes the taint if it is there. It
// fails if the Node's taints have changed since that state.
func (r *Remover) try(ctx context.Context) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), attemptTimeout)
	defer cancel()
	node, err := r.opts.Nodes.Get(ctx, r.opts.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", r.opts.NodeName, err)
	}
	patch, err := r.opts.Taint.removal(node.Spec.Taints)
	if patch == nil || err != nil {
		return false, err
	}
	if _, err := r.opts.Nodes.Patch(ctx, r.opts.NodeName, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return false, fmt.Errorf("patch the taints of node %s: %w", r.opts.NodeName, err)
	}
	return true, nil
}
