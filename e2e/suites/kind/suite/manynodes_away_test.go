package suite

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// whilePaused freezes all processes of a node, its pods' too, calls do, and lets them go on, also if do
// fails the test.
func (n *namespace) whilePaused(node string, do func()) {
	n.t.Helper()
	defer n.undo(func(ctx context.Context) error { return docker(ctx, "unpause", node) })
	mustDocker(n.t, "pause", node)
	do()
}

// whileCutOff drops what a node and its pods send to the API server's node and get from it, calls do, and
// lets it pass again, also if do fails the test.
func (n *namespace) whileCutOff(node string, do func()) {
	n.t.Helper()
	server := n.apiServerAddress()
	rules := func(ctx context.Context, change string) error {
		mangle := []string{"exec", node, "iptables", "--wait", "--table", "mangle", change}
		return errors.Join(
			docker(ctx, append(mangle, "PREROUTING", "--source", server, "--jump", "DROP")...),
			docker(ctx, append(mangle, "POSTROUTING", "--destination", server, "--jump", "DROP")...))
	}
	defer n.undo(func(ctx context.Context) error { return rules(ctx, "--delete") })
	if err := rules(n.t.Context(), "--insert"); err != nil {
		n.t.Fatal(err)
	}
	do()
}

// undo puts a node back as it was, also when the test's own time is over.
func (n *namespace) undo(how func(context.Context) error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := how(ctx); err != nil {
		n.t.Error(err)
	}
}

// apiServerAddress returns the address of the node that has the API server.
func (n *namespace) apiServerAddress() string {
	n.t.Helper()
	nodes, err := n.client.CoreV1().Nodes().List(n.t.Context(), metav1.ListOptions{LabelSelector: controlPlaneTaint})
	if err != nil || len(nodes.Items) != 1 {
		n.t.Fatalf("nodes of the control plane: %v, %v", nodes, err)
	}
	for _, a := range nodes.Items[0].Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	n.t.Fatal("the control plane's node has no address")
	return ""
}
