package authz

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// server answers reviews. It is safe for concurrent use.
type server struct {
	authorizationclient.SubjectAccessReviewInterface
	mu     sync.Mutex
	status authorizationv1.SubjectAccessReviewStatus
	err    error
	asked  []authorizationv1.SubjectAccessReviewSpec
}

func (s *server) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, review.Spec)
	return &authorizationv1.SubjectAccessReview{Status: s.status}, s.err
}

var (
	allowed = authorizationv1.SubjectAccessReviewStatus{Allowed: true}
	errAway = errors.New("connection refused")
	web     = volume.Pod{Namespace: "shop", Name: "web-0", UID: "u", ServiceAccount: "web"}
)

func ref(name string) volume.Ref {
	return volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: name}
}

func TestAskAbout(t *testing.T) {
	for name, test := range reviews() {
		for kind, resource := range map[volume.Kind]string{volume.ConfigMap: "configmaps", volume.Secret: "secrets"} {
			s := &server{status: test.status, err: test.err}
			test.check(t, name, AskAbout(s), volume.Ref{Kind: kind, Namespace: "platform", Name: "o"})
			want := []authorizationv1.SubjectAccessReviewSpec{{
				User:               "system:serviceaccount:shop:web",
				Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "platform", Verb: "watch", Version: "v1", Resource: resource, Name: "o"},
			}}
			if !reflect.DeepEqual(s.asked, want) {
				t.Errorf("%s: asked %+v", name, s.asked)
			}
		}
	}
}

// The verbs of a right are read as a list in a sentence.
func TestPhrase(t *testing.T) {
	for want, verbs := range map[string][]string{
		"get":                 {"get"},
		"get and list":        {"get", "list"},
		"get, list and watch": {"get", "list", "watch"},
		"a, b, c and d":       {"a", "b", "c", "d"},
	} {
		if got := Phrase(verbs); got != want {
			t.Errorf("%q: got %q, want %q", verbs, got, want)
		}
	}
}

// review is an answer of an API server, and its meaning.
type review struct {
	status authorizationv1.SubjectAccessReviewStatus
	err    error
	want   bool
	is     error
}

func reviews() map[string]review {
	return map[string]review{
		"allowed":                          {status: allowed, want: true},
		"allowed, one authorizer failed":   {status: authorizationv1.SubjectAccessReviewStatus{Allowed: true, EvaluationError: "x"}, want: true},
		"nobody allows":                    {},
		"nobody allows, for a reason":      {status: authorizationv1.SubjectAccessReviewStatus{Reason: "RBAC: role not found"}},
		"denied":                           {status: authorizationv1.SubjectAccessReviewStatus{Denied: true}},
		"denied, as the authorizer failed": {status: authorizationv1.SubjectAccessReviewStatus{Denied: true, EvaluationError: "x"}, is: ErrUndecided},
		"denied and allowed":               {status: authorizationv1.SubjectAccessReviewStatus{Denied: true, Allowed: true}},
		"an authorizer failed":             {status: authorizationv1.SubjectAccessReviewStatus{EvaluationError: "webhook"}, is: ErrUndecided},
		"the API server is out of reach.":  {err: errAway, is: errAway},
	}
}

// check asks whether shop/web may watch an object.
func (r *review) check(t *testing.T, name string, ask Ask, ref volume.Ref) {
	t.Helper()
	got, err := ask(t.Context(), web.Account(), ref, "watch", volume.Token{})
	if got != r.want || !errors.Is(err, r.is) || r.is == nil && err != nil {
		t.Errorf("%s: got %t, %v", name, got, err)
	}
	prefix := fmt.Sprintf("ask whether service account shop/web may watch %s: ", ref)
	if err != nil && !strings.HasPrefix(err.Error(), prefix) {
		t.Errorf("%s: error %q, want %q before it", name, err, prefix)
	}
}

// after waits on the bubble's clock.
func after(d time.Duration) { <-time.After(d) }

// must fails the test at once with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
