package permissions

import (
	"context"
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// nodeServer answers who asks, and gets pods.
type nodeServer struct {
	user            authenticationv1.UserInfo
	userErr, podErr error
}

func (s *nodeServer) Create(context.Context, *authenticationv1.SelfSubjectReview, metav1.CreateOptions) (*authenticationv1.SelfSubjectReview, error) {
	return &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: s.user}}, s.userErr
}

func (s *nodeServer) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	if name != "plugin-x" {
		return nil, errors.New("another pod")
	}
	return &corev1.Pod{}, s.podErr
}

func TestNode(t *testing.T) {
	down := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "plugin-x", errors.New("no"))
	for name, test := range map[string]struct {
		change        func(*nodeServer)
		problem, fail string
	}{
		"nothing":        {func(*nodeServer) {}, "", ""},
		"who is unknown": {func(s *nodeServer) { s.userErr = down }, "", "ask whose the plugin's token is: connection refused"},
		"a user": {
			func(s *nodeServer) { s.user = authenticationv1.UserInfo{Username: "admin"} },
			`the plugin's credential, of "admin", is not bound to a pod: only the token that the kubelet mounts into the plugin's pod may impersonate the node (no --kubeconfig)`, "",
		},
		"no claim of a node": {
			func(s *nodeServer) { delete(s.user.Extra, nodeNameKey) },
			"the plugin's token has no claim of a node (authentication.kubernetes.io/node-name): Kubernetes 1.32 and newer make one", "",
		},
		"two nodes": {
			func(s *nodeServer) { s.user.Extra[nodeNameKey] = []string{"n1", "n2"} },
			"the plugin's token has no claim of a node (authentication.kubernetes.io/node-name): Kubernetes 1.32 and newer make one", "",
		},
		"another node": {
			func(s *nodeServer) { s.user.Extra[nodeNameKey] = []string{"n2"} },
			`the plugin's token is that of a pod on node "n2", and --node-name is "n1": it may impersonate its own node only`, "",
		},
		"unreachable": {func(s *nodeServer) { s.podErr = down }, "", "get the plugin's own pod refvol-system/plugin-x as system:node:n1: connection refused"},
		"refused": {
			func(s *nodeServer) { s.podErr = forbidden },
			`the API server does not let the plugin get its own pod refvol-system/plugin-x as its node: that needs the feature gate ConstrainedImpersonation (on by default from Kubernetes 1.36 on) and --authorization-mode=Node,RBAC, and after a start it takes a moment: pods "plugin-x" is forbidden: no`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &nodeServer{user: authenticationv1.UserInfo{Username: "system:serviceaccount:refvol-system:refvol-plugin", Extra: map[string]authenticationv1.ExtraValue{
				podNameKey: {"plugin-x"}, nodeNameKey: {"n1"},
			}}}
			test.change(s)
			text := func(err error) string {
				if err == nil {
					return ""
				}
				return err.Error()
			}
			n := &Node{Name: "n1", Pods: func(string) Pods { return s }, Reviews: s}
			problem, err := n.ask(t.Context())
			if text(problem) != test.problem || text(err) != test.fail {
				t.Errorf("got\n%v\n%v", problem, err)
			}
		})
	}
}

// Missing rights are told first: they are the usual reason of a refusal.
func TestMissingRightsOfTheNode(t *testing.T) {
	user := authenticationv1.UserInfo{Username: "system:serviceaccount:refvol-system:refvol-plugin", Extra: map[string]authenticationv1.ExtraValue{
		podNameKey: {"plugin-x"}, nodeNameKey: {"n1"},
	}}
	s := &nodeServer{user: user, podErr: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "plugin-x", errors.New("no"))}
	c, err := New(Options{
		Identity: "node", Needs: append(OnNode("secrets", "", "get", "watch"), Impersonation("n1")), Reviews: &apiServer{allowed: []string{"impersonate-on:associated-node:get secrets"}},
		Node: &Node{Name: "n1", Pods: func(string) Pods { return s }, Reviews: s}, Refused: make(chan struct{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	missing, problem, err := c.ask(t.Context())
	if err != nil || len(missing) != 2 || !strings.Contains(problem.Error(), "--identity=node needs: impersonate-on:associated-node:watch of secrets, impersonate:associated-node of nodes: grant") {
		t.Errorf("got %q, %v, %v", missing, problem, err)
	}
}
