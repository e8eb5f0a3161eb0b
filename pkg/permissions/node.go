package permissions

import (
	"context"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The claims of a token that is bound to a pod, as the API server names them in a review.
const (
	podNameKey  = "authentication.kubernetes.io/pod-name"
	nodeNameKey = "authentication.kubernetes.io/node-name"
)

// SelfSubjectReviews asks who sends a request. A client-go client implements it.
type SelfSubjectReviews interface {
	Create(ctx context.Context, review *authenticationv1.SelfSubjectReview, opts metav1.CreateOptions) (*authenticationv1.SelfSubjectReview, error)
}

// Pods gets the pods of one namespace. A client-go client implements it.
type Pods interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Pod, error)
}

// Node checks whether the API server lets the plugin read with its node's rights, by constrained impersonation. All fields are required.
type Node struct {
	// Name is the name of this node's Node object.
	Name string
	// Pods gets pods with the node's rights. Reviews asks with the plugin's own rights.
	Pods    func(namespace string) Pods
	Reviews SelfSubjectReviews
}

// NodeUser returns the user name of a node, which the plugin's requests impersonate.
func NodeUser(nodeName string) string { return "system:node:" + nodeName }

// OnNode returns the rights that the plugin's account needs to use verbs on a resource with its node's rights. name "" stands for all
// objects.
func OnNode(resource, name string, verbs ...string) (needs []authorizationv1.ResourceAttributes) {
	for _, verb := range verbs {
		needs = append(needs, authorizationv1.ResourceAttributes{Verb: "impersonate-on:associated-node:" + verb, Resource: resource, Name: name})
	}
	return needs
}

// Impersonation returns the right of the plugin's account to impersonate its node.
func Impersonation(nodeName string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Verb: "impersonate:associated-node", Group: authenticationv1.GroupName, Resource: "nodes", Name: nodeName}
}

// refusedError is a problem that a missing right of the plugin's account could explain.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// ask returns what is wrong, or nil. The proof is a request for the plugin's own pod: it needs the feature gate, the rules, the Node
// authorizer and a token that is bound to a pod of the node. A review of the rights is no proof, because RBAC doesn't know about the first
// and the third.
func (n *Node) ask(ctx context.Context) (problem, err error) {
	review, err := n.Reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("find out whose token the plugin has: %w", err)
	}
	user := review.Status.UserInfo
	account, isAccount := strings.CutPrefix(user.Username, "system:serviceaccount:")
	namespace, _, _ := strings.Cut(account, ":")
	pod, node := claim(&user, podNameKey), claim(&user, nodeNameKey)
	switch {
	case !isAccount || pod == "":
		return fmt.Errorf("the plugin's credential, of %q, is not bound to a pod: only the token that the kubelet mounts into the plugin's pod may impersonate the node (no --kubeconfig)", user.Username), nil
	case node == "":
		return fmt.Errorf("the plugin's token has no claim of a node (%s): Kubernetes 1.32 and newer make one", nodeNameKey), nil
	case node != n.Name:
		return fmt.Errorf("the plugin's token is that of a pod on node %q, and --node-name is %q: it may impersonate its own node only", node, n.Name), nil
	}
	_, err = n.Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return refusedError{fmt.Errorf("the API server does not let the plugin get its own pod %s/%s as its node: that needs the feature gate ConstrainedImpersonation (on by default from Kubernetes 1.36 on) and --authorization-mode=Node,RBAC, and after a start it takes a moment: %w",
			namespace, pod, err)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get the plugin's own pod %s/%s as %s: %w", namespace, pod, NodeUser(n.Name), err)
	}
	return nil, nil
}

func claim(user *authenticationv1.UserInfo, key string) string {
	if values := user.Extra[key]; len(values) == 1 {
		return values[0]
	}
	return ""
}
