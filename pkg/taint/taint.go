// Package taint removes the taint that keeps pods away from a node until the driver is registered there.
//
// It owns the change of the Node. It must not know how the kubelet confirms a registration.
package taint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
)

const (
	// attemptTimeout limits the two requests of one attempt together.
	attemptTimeout = 10 * time.Second
	// firstLook and lastLook are the shortest and the longest pause before the Node is read again, with jitter. Successful reads stop
	// lookFor after the registration: some clouds add a node pool's taints only after the node has registered its drivers.
	firstLook = time.Second
	lastLook  = 30 * time.Second
	lookFor   = 10 * time.Minute
)

// Nodes reads and patches Node objects. A client's CoreV1().Nodes() implements it.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, form types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Remover removes the taints with one key from a node, with any value and effect, each time that the kubelet confirms the driver's
// registration. A Node that was deleted and created again has the taint again, and its kubelet registers the driver again. A watch would be
// faster, but would need one more right, and RBAC cannot limit that to the plugin's own Node.
//
// It has no goroutine except the one that calls Run. SetRegistered is safe for concurrent use. A call before Run takes effect when Run
// starts.
type Remover struct {
	nodes      Nodes
	node, key  string
	registered atomic.Bool
	// changed has room for one signal that registered has changed.
	changed chan struct{}
}

// NewRemover returns a Remover of the taints with a key from the named Node. It does nothing until Run is called. It fails if the key is
// not valid.
func NewRemover(nodes Nodes, node, key string) (*Remover, error) {
	if err := ValidateKey(key); err != nil {
		return nil, err
	}
	return &Remover{nodes: nodes, node: node, key: key, changed: make(chan struct{}, 1)}, nil
}

// ValidateKey returns an error if a taint's key is not valid.
func ValidateKey(key string) error {
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return fmt.Errorf("Invalid value: %q: must be the key of a taint, without value and effect: %w", key, errors.New(strings.Join(problems, "; ")))
	}
	return nil
}

// SetRegistered sets whether the kubelet has confirmed the registration or refused it. After a refusal the Node is not changed.
// SetRegistered never blocks.
func (r *Remover) SetRegistered(registered bool) {
	r.registered.Store(registered)
	select {
	case r.changed <- struct{}{}:
	default: // a signal is pending already, and its receiver sees the new state
	}
}

// Run removes the taints when it is time, until ctx ends. It must be called once. It retries failures without end, and logs only the first
// of consecutive ones.
func (r *Remover) Run(ctx context.Context) {
	logger := klog.FromContext(ctx).WithValues("node", r.node, "taint", r.key)
	var next <-chan time.Time
	var pauses wait.Backoff
	var ends time.Time
	looked, failed := false, false
	for {
		select {
		case <-r.changed:
			ends, looked = time.Now().Add(lookFor), false
			pauses = wait.Backoff{Duration: firstLook, Factor: 2, Jitter: 0.2, Steps: math.MaxInt, Cap: lastLook}
		case <-next:
		case <-ctx.Done():
			return
		}
		next = nil
		if !r.registered.Load() {
			continue
		}
		removed, err := r.removeTaints(ctx)
		switch {
		case err != nil && !failed && ctx.Err() == nil:
			logger.Error(err, "Removing the startup taint failed, trying again")
		case removed:
			logger.Info("Removed the startup taint")
		case err == nil && !looked:
			logger.V(2).Info("The node has no startup taint")
		}
		looked, failed = looked || err == nil, err != nil
		if pause := pauses.Step(); failed || time.Now().Add(pause).Before(ends) {
			next = time.After(pause)
		}
	}
}

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// removeTaints reads the Node from the API server's cache and removes the taints if they are there. The patch fails if the Node has changed
// since that state, so it never removes another taint.
func (r *Remover) removeTaints(ctx context.Context) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), attemptTimeout)
	defer cancel()
	node, err := r.nodes.Get(ctx, r.node, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", r.node, err)
	}
	others := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == r.key })
	if len(others) == len(node.Spec.Taints) {
		return false, nil
	}
	patch, err := json.Marshal([]operation{{"test", "/metadata/resourceVersion", node.ResourceVersion}, {"replace", "/spec/taints", others}})
	if err != nil {
		return false, fmt.Errorf("encode the taints of node %s: %w", r.node, err)
	}
	if _, err := r.nodes.Patch(ctx, r.node, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return false, fmt.Errorf("patch the taints of node %s: %w", r.node, err)
	}
	return true, nil
}
