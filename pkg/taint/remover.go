package taint

import (
	"context"
	"errors"
	"fmt"
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
	retryScale = 2
	jitter     = 0.2
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

// Remover takes a taint off this node each time that the kubelet has confirmed the
// driver's registration: a Node that is deleted and made again has the taint again, and
// its kubelet registers the driver again.
//
// It has no goroutine of its own but the one that calls Run. Registered is safe for
// concurrent use.
type Remover struct {
	opts       Options
	registered atomic.Bool
	// told has room for one signal that registered has changed.
	told chan struct{}
}

// NewRemover returns a Remover that does nothing until Run is called. It fails if an
// option is missing.
func NewRemover(opts Options) (*Remover, error) {
	if opts.Nodes == nil || opts.NodeName == "" || opts.Taint.key == "" {
		return nil, errors.New("taint options: Nodes, NodeName and Taint are required")
	}
	return &Remover{opts: opts, told: make(chan struct{}, 1)}, nil
}

// Registered tells that the kubelet has confirmed the registration, or refused it: then
// a removal that has not succeeded yet ends. It never blocks.
func (r *Remover) Registered(registered bool) {
	r.registered.Store(registered)
	select {
	case r.told <- struct{}{}:
	default: // a signal waits already, and whoever takes it sees the new state
	}
}

// Run removes the taint whenever it is time, until ctx ends. It is called once.
func (r *Remover) Run(ctx context.Context) {
	for {
		select {
		case <-r.told:
		case <-ctx.Done():
			return
		}
		r.remove(ctx)
	}
}

// remove tries until it has succeeded, ctx ends, or the driver is not registered. A
// failure is logged when it is the first of a row.
func (r *Remover) remove(ctx context.Context) {
	logger := klog.FromContext(ctx)
	backoff := wait.Backoff{Duration: firstRetry, Factor: retryScale, Jitter: jitter, Steps: 1 << 20, Cap: lastRetry}
	for failures := 0; r.registered.Load(); failures++ {
		removed, err := r.try(ctx)
		switch {
		case removed:
			logger.Info("Removed the startup taint", "node", r.opts.NodeName, "taint", r.opts.Taint)
			return
		case err == nil:
			logger.V(2).Info("The node has no startup taint", "node", r.opts.NodeName, "taint", r.opts.Taint)
			return
		case ctx.Err() != nil:
			return
		case failures == 0:
			logger.Error(err, "Removing the startup taint failed, trying again", "node", r.opts.NodeName, "taint", r.opts.Taint)
		}
		if !sleep(ctx, backoff.Step()) {
			return
		}
	}
}

// try reads the Node and removes the taint if it is there. An error may be that of
// somebody else's change between the two requests.
func (r *Remover) try(ctx context.Context) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), attemptTimeout)
	defer cancel()
	node, err := r.opts.Nodes.Get(ctx, r.opts.NodeName, metav1.GetOptions{})
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

// sleep waits, and tells whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
