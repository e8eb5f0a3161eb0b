package authz

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// server answers reviews; it is safe for concurrent use.
type server struct {
	authorizationclient.SubjectAccessReviewInterface
	mu     sync.Mutex
	status authorizationv1.SubjectAccessReviewStatus
	err    error
	// delay is how long an answer takes.
	delay time.Duration
	asked []authorizationv1.SubjectAccessReviewSpec
	// now is how many requests are under way, most how many were at once.
	now, most int
}

func (s *server) Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	s.mu.Lock()
	s.asked = append(s.asked, review.Spec)
	s.now++
	s.most = max(s.most, s.now)
	answer, err := &authorizationv1.SubjectAccessReview{Status: s.status}, s.err
	s.mu.Unlock()
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	return answer, err
}

func (s *server) set(status authorizationv1.SubjectAccessReviewStatus, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.err = status, err
}

// under returns how many requests are under way.
func (s *server) under() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *server) takeAsked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.asked)
	s.asked = nil
	return n
}

var (
	allowed = authorizationv1.SubjectAccessReviewStatus{Allowed: true}
	refused = authorizationv1.SubjectAccessReviewStatus{}
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

// review is an answer of an API server, and what it says of the right.
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
	got, err := ask(t.Context(), web.Account(), ref, "watch")
	if got != r.want || !errors.Is(err, r.is) || r.is == nil && err != nil {
		t.Errorf("%s: got %t, %v", name, got, err)
	}
	prefix := fmt.Sprintf("ask whether service account shop/web may watch %s: ", ref)
	if err != nil && !strings.HasPrefix(err.Error(), prefix) {
		t.Errorf("%s: error %q, want %q before it", name, err, prefix)
	}
}

// inBubble runs a test on fake time, with answers good for a minute.
func inBubble(t *testing.T, test func(t *testing.T, s *server, r *Reviewer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{status: allowed}
		r, err := New(Options{Ask: AskAbout(s), Verbs: []string{"get"}, Kept: "get", MaxAge: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		test(t, s, r)
	})
}

func want(t *testing.T, r *Reviewer, pod volume.Pod, of volume.Ref, want bool) {
	t.Helper()
	if got, err := r.Allowed(t.Context(), pod, of, time.Minute); err != nil || got != want {
		t.Errorf("%s for %s: %t, %v, want %t", of, pod, got, err, want)
	}
}

// Answers of either kind are given again for a minute from the question on, and each
// account and object has its own.
func TestAnswersAge(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		s.delay = 5 * time.Second
		want(t, r, web, ref("a"), true)
		s.set(refused, nil)
		other, neighbour := web, web
		other.ServiceAccount, neighbour.Name, neighbour.UID = "admin", "web-1", "v"
		want(t, r, web, ref("a"), true)
		want(t, r, neighbour, ref("a"), true)
		if n := s.takeAsked(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
		want(t, r, other, ref("a"), false)
		want(t, r, web, ref("b"), false)
		if n := s.takeAsked(); n != 2 {
			t.Errorf("asked %d times, want twice", n)
		}
		after(time.Minute - 15*time.Second) // the questions took the rest
		want(t, r, web, ref("a"), false)
		s.set(allowed, nil)
		want(t, r, web, ref("b"), false)
		after(time.Minute)
		want(t, r, web, ref("b"), true)
	})
}

// An error is kept for a moment only, and is no answer.
func TestErrorsAreNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		s.set(allowed, errAway)
		for range 2 {
			if _, err := r.Allowed(t.Context(), web, ref("a"), time.Minute); !errors.Is(err, errAway) {
				t.Errorf("got %v", err)
			}
			after(failureAge)
		}
		if n := s.takeAsked(); n != 2 {
			t.Errorf("asked %d times, want twice", n)
		}
		s.set(allowed, nil)
		want(t, r, web, ref("a"), true)
		// Nor does an error renew an answer.
		after(time.Minute)
		s.set(allowed, errAway)
		if _, err := r.Allowed(t.Context(), web, ref("a"), time.Minute); !errors.Is(err, errAway) {
			t.Errorf("got %v", err)
		}
	})
}

// Many volumes with one question at once ask it once; who gives up waiting doesn't end it
// for the others.
func TestOneRequestPerQuestion(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		s.delay = 5 * time.Second
		var calls sync.WaitGroup
		for range 50 {
			calls.Go(func() { want(t, r, web, ref("a"), true) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Allowed(ctx, web, ref("a"), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		calls.Go(func() { want(t, r, web, ref("b"), true) })
		calls.Wait()
		if n := s.takeAsked(); n != 2 || s.most != 2 {
			t.Errorf("asked %d times, %d at once", n, s.most)
		}
		s.delay = time.Hour
		if _, err := r.Allowed(t.Context(), web, ref("c"), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a hanging request: got %v", err)
		}
	})
}

func TestQuestionsAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		for i := range 100 {
			want(t, r, web, ref(fmt.Sprint("o-", i)), true)
			after(10 * time.Second)
		}
		if n := len(r.questions); n > 13 {
			t.Errorf("%d questions are kept, of which 6 are of use", n)
		}
	})
}

func TestOptions(t *testing.T) {
	ask, get := AskAbout(&server{}), []string{"get"}
	for want, opts := range map[string]Options{
		"authz options: Ask: Required value":                                         {Verbs: get, Kept: "get", MaxAge: time.Minute},
		`authz options: Kept: Invalid value: "watch": must be one of Verbs, ["get"]`: {Ask: ask, Verbs: get, Kept: "watch", MaxAge: time.Minute},
		`authz options: Kept: Invalid value: "": must be one of Verbs, []`:           {Ask: ask, MaxAge: time.Minute},
		"authz options: MaxAge: Invalid value: 0s: must be positive":                 {Ask: ask, Verbs: get, Kept: "get"},
		"authz options: MaxAge: Invalid value: -1m0s: must be positive":              {Ask: ask, Verbs: get, Kept: "get", MaxAge: -time.Minute},
	} {
		if _, err := New(opts); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// after waits on the bubble's clock.
func after(d time.Duration) { <-time.After(d) }

// A new volume's pod needs every right, one that is mounted the one that is to be kept.
func TestAdmittedAndAllowed(t *testing.T) {
	for name, test := range map[string]struct {
		may               []string
		admitted, allowed bool
	}{
		"all":       {[]string{"get", "list", "watch"}, true, true},
		"not get":   {[]string{"list", "watch"}, false, true},
		"not watch": {[]string{"get", "list"}, false, false},
		"none":      {nil, false, false},
	} {
		r, err := New(Options{
			Ask: func(_ context.Context, _ volume.Account, _ volume.Ref, verb string) (bool, error) {
				return slices.Contains(test.may, verb), nil
			},
			Verbs: []string{"get", "list", "watch"}, Kept: "watch", MaxAge: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Admitted(t.Context(), web, ref("a"), 0); err != nil || got != test.admitted {
			t.Errorf("%s: admitted %t, %v", name, got, err)
		}
		want(t, r, web, ref("a"), test.allowed)
		if got := r.Needs(); got != "get, list and watch" {
			t.Errorf("it needs %q", got)
		}
	}
}
