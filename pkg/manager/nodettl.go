package manager

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
)

const (
	// defaultTTL applies to a Node without the annotation.
	defaultTTL = time.Minute
	// ttlInterval is the shortest time between two requests for the Node.
	ttlInterval = time.Minute
)

// nodeTTL reads from the Node object how long answers may be used. The node lifecycle controller sets that by the size of the cluster. Its
// requests run in goroutines of the manager, one at a time. mu guards the fields below it.
type nodeTTL struct {
	m     *Manager
	nodes Nodes
	node  string

	mu          sync.Mutex
	ttl         time.Duration
	requestedAt time.Time
	failing     bool
	// cancel ends the request in flight; nil if there is none. closed means that no request may start.
	cancel context.CancelFunc
	closed bool
}

// get returns the last known duration without waiting. If the last request for the Node is more than a minute old, it sends another one in
// the background.
func (n *nodeTTL) get() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if due := n.requestedAt.IsZero() || time.Since(n.requestedAt) >= ttlInterval; due && n.cancel == nil && !n.closed {
		ctx, cancel := context.WithTimeout(clientlog.Context(context.Background()), bodyTimeout)
		n.requestedAt, n.cancel = time.Now(), cancel
		n.m.running.Go(func() {
			defer cancel()
			n.refresh(ctx)
		})
	}
	return n.ttl
}

// refresh gets the Node. A failure leaves the duration as it is. Only the first of consecutive failures is logged.
func (n *nodeTTL) refresh(ctx context.Context) {
	node, err := n.nodes.Get(ctx, n.node, metav1.GetOptions{ResourceVersion: "0"})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cancel = nil
	if err == nil {
		n.ttl, n.failing = ttlOf(node), false
		return
	}
	if !n.failing && !n.closed {
		klog.Background().Info("Get of the Node failed, its TTL annotation has no effect", "node", n.node, "ttl", n.ttl, "err", err)
	}
	n.failing = true
}

// ttlOf returns the value of a Node's annotation, or defaultTTL.
func ttlOf(node *corev1.Node) time.Duration {
	seconds, err := strconv.ParseInt(node.Annotations[corev1.ObjectTTLAnnotationKey], 10, 32)
	if err != nil || seconds < 0 {
		return defaultTTL
	}
	return time.Duration(seconds) * time.Second
}

// close ends the request in flight. No request starts afterwards.
func (n *nodeTTL) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.cancel != nil {
		n.cancel()
	}
}
