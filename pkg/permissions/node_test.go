package permissions

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeServer answers who the plugin is, and reads of pods with the node's rights. It fails with unknown and refused.
type nodeServer struct {
	user             authenticationv1.UserInfo
	unknown, refused error
	namespace, pod   string
}

func (s *nodeServer) Create(
	_ context.Context, review *authenticationv1.SelfSubjectReview, _ metav1.CreateOptions,
) (*authenticationv1.SelfSubjectReview, error) {
	review.Status.UserInfo = s.user
	return review, s.unknown
}

func (s *nodeServer) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	s.pod = name
	return &corev1.Pod{}, s.refused
}

func (s *nodeServer) node() *Node {
	return &Node{Name: "node1", Reviews: s, Pods: func(namespace string) Pods {
		s.namespace = namespace
		return s
	}}
}

// token returns the user of a service account's token that is bound to a pod, if it has a name, and to nodes.
func token(pod string, nodes ...string) authenticationv1.UserInfo {
	extra := map[string]authenticationv1.ExtraValue{nodeNameKey: nodes}
	if pod != "" {
		extra[podNameKey] = []string{pod}
	}
	return authenticationv1.UserInfo{Username: "system:serviceaccount:refvol-system:refvol", Extra: extra}
}

// TestNode says what keeps the plugin from reading with its node's rights. Rights that its account lacks are named if they are the cause, or
// the only problem.
func TestNode(t *testing.T) {
	failure := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "refvol-x", errors.New("no"))
	for name, test := range map[string]struct {
		server nodeServer
		want   string // how the problem begins
		// lacking is the same, when the plugin's account also lacks a right.
		lacking string
	}{
		"as its node": {nodeServer{user: token("refvol-x", "node1")}, "", lacks},
		"refused": {
			nodeServer{user: token("refvol-x", "node1"), refused: forbidden},
			"the API server does not let the plugin get its own pod refvol-system/refvol-x as its node: that needs the feature gate", lacks,
		},
		"another node": {
			nodeServer{user: token("refvol-x", "node2")},
			`the plugin's token is that of a pod on node "node2", and --node-name is "node1": it may impersonate its own node only`, "",
		},
		"no node": {nodeServer{user: token("refvol-x")}, "the plugin's token has no claim of a node (authentication.kubernetes.io/node-name): ", ""},
		"two nodes": {
			nodeServer{user: token("refvol-x", "node1", "node2")},
			"the plugin's token has no claim of a node (authentication.kubernetes.io/node-name): ", "",
		},
		"no pod": {
			nodeServer{user: token("", "node1")},
			`the plugin's credential, of "system:serviceaccount:refvol-system:refvol", is not bound to a pod: only the token`, "",
		},
		"no account": {
			nodeServer{user: authenticationv1.UserInfo{Username: "admin", Extra: token("refvol-x", "node1").Extra}},
			`the plugin's credential, of "admin", is not bound to a pod: only the token`, "",
		},
		"nobody knows": {nodeServer{unknown: failure, user: token("refvol-x", "node1")}, "find out whose token the plugin has: connection refused", ""},
		"no answer": {
			nodeServer{refused: failure, user: token("refvol-x", "node1")},
			"get the plugin's own pod refvol-system/refvol-x as system:node:node1: connection refused", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &apiServer{node: test.server.node()}
				s.answer(nil, strings.Split(all, ",")...)
				c, refused, _ := running(t, s)
				after(time.Minute)
				wantProblem(t, c, test.want)
				if test.want == "" && (test.server.namespace != "refvol-system" || test.server.pod != "refvol-x") {
					t.Errorf("the proof was pod %s/%s", test.server.namespace, test.server.pod)
				}
				s.answer(nil, "list configmaps", "watch configmaps", "list secrets")
				refused <- struct{}{}
				after(2 * time.Minute)
				if test.lacking == "" {
					test.lacking = test.want
				}
				wantProblem(t, c, test.lacking)
			})
		})
	}
}

func wantProblem(t *testing.T, c *Checker, want string) {
	t.Helper()
	if err := c.Ready(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
