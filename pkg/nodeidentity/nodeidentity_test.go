package nodeidentity

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
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

	mu   sync.Mutex // for podErr and pods
	pods int
}

func (s *apiServer) Create(context.Context, *authenticationv1.SelfSubjectReview, metav1.CreateOptions) (*authenticationv1.SelfSubjectReview, error) {
	return &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: s.user}}, s.userErr
}

func (s *apiServer) Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods++
	return &corev1.Pod{}, s.podErr
}

// asked returns how often the pod was asked for. The next answers are err.
func (s *apiServer) asked(err error) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.podErr = err
	return s.pods
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
		"no reviews": {
			func(s *apiServer) { s.accessErr = down }, "ask whether the plugin may impersonate:associated-node nodes: connection refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer()
			test.change(s)
			c, err := New(s.options())
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := c.attempt(t.Context()); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got\n%s, want\n%s", got, test.want)
			}
		})
	}
}

// Run asks until it is allowed, tells each problem once, and asks no more then.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		s.podErr = errors.New("connection refused")
		c, err := New(s.options())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ready(); !errors.Is(err, errUnknown) {
			t.Errorf("at first: %v", err)
		}
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
		defer cancel()
		go c.Run(ctx)
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("got %v", err)
		}
		if n := s.asked(nil); n < 10 || n > 40 {
			t.Errorf("%d requests in ten minutes", n)
		}
		<-time.After(2 * lastRetry)
		synctest.Wait()
		if err := c.Ready(); err != nil {
			t.Error(err)
		}
		asked := s.asked(nil)
		<-time.After(10 * time.Minute)
		if n := s.asked(nil); n != asked {
			t.Error("it asked again")
		}
		if lines := strings.Count(log.String(), "\n"); lines != 2 {
			t.Errorf("logged\n%s", &log)
		}
	})
}

// A Run that is stopped ends, also in a pause.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		s.podErr = errors.New("connection refused")
		c, err := New(s.options())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c.Run(ctx)
	})
}

func TestOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"": func(*Options) {},
		"node identity options: Verbs, PodsAsNode, Reviews, AccessReviews, Version: Required value": func(o *Options) { o.Version = nil },
		`node identity options: NodeName: Invalid value: "N 1": no Node can have this name: `:       func(o *Options) { o.NodeName = "N 1" },
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
