package nodeidentity

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/refvol/refvol/pkg/rights"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer gives the answers that a real one gives only now and then, or never again. The e2e
// suites have the others.
type apiServer struct {
	user                        authenticationv1.UserInfo
	userErr, podErr, versionErr error
	accessErr                   error
	denied                      map[string]bool
	info                        version.Info
	// readsNode is the option Node.
	readsNode bool
}

func (s *apiServer) Create(context.Context, *authenticationv1.SelfSubjectReview, metav1.CreateOptions) (*authenticationv1.SelfSubjectReview, error) {
	return &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: s.user}}, s.userErr
}

func (s *apiServer) Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) {
	return &corev1.Pod{}, s.podErr
}

type accessReviews struct{ *apiServer }

func (s accessReviews) Create(_ context.Context, review *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	asked := review.Spec.ResourceAttributes
	review.Status.Allowed = !s.denied[asked.Verb+" "+asked.Resource]
	return review, s.accessErr
}

func newAPIServer() *apiServer {
	return &apiServer{
		user: authenticationv1.UserInfo{Username: "system:serviceaccount:refvol-system:refvol-plugin", Extra: map[string]authenticationv1.ExtraValue{
			podNameKey: {"plugin-x"}, nodeNameKey: {"n1"},
		}},
		info: version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"},
	}
}

func (s *apiServer) options() Options {
	return Options{
		NodeName:      "n1",
		Verbs:         []string{"get"},
		Node:          s.readsNode,
		PodsAsNode:    func(string) Pods { return s },
		Reviews:       s,
		AccessReviews: accessReviews{s},
		Version:       func(context.Context) (*version.Info, error) { return &s.info, s.versionErr },
		Refusals:      rights.NewRefusals(),
	}
}

func forbidden(message string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "plugin-x", errors.New(message))
}

func TestWhatIsMissing(t *testing.T) {
	const (
		asSelf = `User "system:serviceaccount:refvol-system:refvol-plugin" cannot impersonate resource "users"`
		asNode = `User "system:node:n1" cannot get resource "pods"`
	)
	down := errors.New("connection refused")
	for name, test := range map[string]struct {
		change func(*apiServer)
		want   string
	}{
		"nothing":        {func(*apiServer) {}, ""},
		"who is unknown": {func(s *apiServer) { s.userErr = down }, "ask whose the plugin's token is: connection refused"},
		"no claim of a node": {
			func(s *apiServer) {
				delete(s.user.Extra, nodeNameKey)
				s.info.Minor, s.info.GitVersion = "28+", "v1.28.1"
			},
			"the plugin's token has no claim of a node (authentication.kubernetes.io/node-name) (its version is v1.28.1; the gate is on by default from 1.36 on)",
		},
		"two nodes": {
			func(s *apiServer) { s.user.Extra[nodeNameKey] = []string{"n1", "n2"} },
			"the plugin's token has no claim of a node (authentication.kubernetes.io/node-name) (its version is v1.36.3)",
		},
		"unreachable": {
			func(s *apiServer) { s.podErr = down }, "get the plugin's own pod refvol-system/plugin-x as system:node:n1: connection refused",
		},
		"lagging authorizer": {
			func(s *apiServer) {
				s.podErr = forbidden(asNode + ": no relationship found between node 'n1' and this object")
			},
			`the API server's Node authorizer does not know the plugin's own pod refvol-system/plugin-x yet: pods "plugin-x" is forbidden: ` + asNode + ": no relationship found between node 'n1' and this object",
		},
		"the authorizer did not decide": {
			func(s *apiServer) { s.podErr = forbidden(asNode) },
			`the API server's Node authorizer did not decide: is --authorization-mode=Node,RBAC set? pods "plugin-x" is forbidden: ` + asNode,
		},
		"gate off, version unknown": {
			func(s *apiServer) { s.podErr, s.versionErr = forbidden(asSelf), down },
			`the API server's feature gate ConstrainedImpersonation is off: pods "plugin-x" is forbidden: ` + asSelf,
		},
		"too old": {
			func(s *apiServer) { s.podErr = forbidden(asSelf); s.info.Minor, s.info.GitVersion = "34", "v1.34.0" },
			`the API server's feature gate ConstrainedImpersonation is off (its version is v1.34.0; the gate is on by default from 1.36 on): pods "plugin-x" is forbidden: ` + asSelf,
		},
		"newer than known": {
			func(s *apiServer) { s.podErr = forbidden(asSelf); s.info.Minor, s.info.GitVersion = "41", "v1.41.0" },
			`the API server's feature gate ConstrainedImpersonation is off (its version is v1.41.0): pods "plugin-x" is forbidden: ` + asSelf,
		},
		"rules": {
			func(s *apiServer) {
				s.podErr, s.denied = forbidden(asSelf), map[string]bool{"impersonate:associated-node nodes": true, "impersonate-on:associated-node:get secrets": true}
			},
			"the plugin's account refvol-system/refvol-plugin lacks rights that --identity=node needs: impersonate:associated-node of nodes, impersonate-on:associated-node:get of secrets",
		},
		"no rule for the Node": {
			func(s *apiServer) {
				s.readsNode, s.denied = true, map[string]bool{"impersonate-on:associated-node:get nodes": true}
			},
			"the plugin's account refvol-system/refvol-plugin lacks rights that --identity=node needs: impersonate-on:associated-node:get of nodes",
		},
		"the Node is not read": {
			func(s *apiServer) { s.denied = map[string]bool{"impersonate-on:associated-node:get nodes": true} }, "",
		},
		"no rule for events": {
			func(s *apiServer) { s.denied = map[string]bool{"patch events": true} },
			"the plugin's account refvol-system/refvol-plugin lacks rights that --identity=node needs: patch of events",
		},
		"no reviews": {
			func(s *apiServer) { s.accessErr = down }, "ask whether the plugin may impersonate:associated-node nodes: connection refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer()
			test.change(s)
			opts := s.options()
			got := ""
			missing, err := (&questions{opts, needs(&opts)}).ask(t.Context())
			if err != nil {
				got = err.Error()
			}
			if got != test.want || len(missing) > 0 && !strings.HasSuffix(got, " needs: "+strings.Join(missing, ", ")) {
				t.Errorf("got\n%s, and %q, want\n%s", got, missing, test.want)
			}
			if (len(missing) > 0) != strings.Contains(got, "lacks rights") {
				t.Errorf("%q are missing, and it says %s", missing, got)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"": func(*Options) {},
		"node identity options: Verbs, PodsAsNode, Reviews, AccessReviews, Version, Refusals: Required value": func(o *Options) { o.Refusals = nil },
		`node identity options: NodeName: Invalid value: "N 1": no Node can have this name: `:                 func(o *Options) { o.NodeName = "N 1" },
	} {
		opts := newAPIServer().options()
		change(&opts)
		got := ""
		if _, err := New(opts); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
