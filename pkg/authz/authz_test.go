package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/internal/must"
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

func podOf(uid types.UID) volume.Pod {
	return volume.Pod{Namespace: "shop", Name: string(uid), UID: uid, ServiceAccount: "web"}
}

func goodFor(secret string, d time.Duration) volume.Token {
	return volume.NewToken(secret, time.Now().Add(d))
}

// wantTokens compares the tokens with which requests of shop/web are tried, in order.
func wantTokens(t *testing.T, tokens *Tokens, want ...string) {
	t.Helper()
	got := tokens.take(web.Account())
	if len(got) != len(want) {
		t.Fatalf("%d tokens, want %q", len(got), want)
	}
	for i, token := range got {
		if token.Reveal() != want[i] {
			t.Errorf("token %d is %q, want %q", i, token.Reveal(), want[i])
		}
	}
	if err := tokens.Ready(web.Account()); errors.Is(err, ErrNoToken) != (len(want) == 0) {
		t.Errorf("Ready: %v with %d tokens", err, len(want))
	}
}

// A pod's token is replaced by its next one, exists as long as one of its volumes, and is not used for another account.
func TestTokens(t *testing.T) {
	tokens := &Tokens{}
	wantTokens(t, tokens)
	tokens.Drop(podOf("a"), "v1")
	if tokens.Put(podOf("z"), "v0", volume.Token{}) {
		t.Error("a pod without a token has the first one")
	}
	tokens.Drop(podOf("z"), "v0")
	if !tokens.Put(podOf("a"), "v1", goodFor("a1", time.Hour)) {
		t.Error("the first token is not told to be")
	}
	if tokens.Put(podOf("a"), "v2", goodFor("a2", time.Hour)) || tokens.Put(podOf("b"), "v3", goodFor("b1", 2*time.Hour)) {
		t.Error("another token is told to be the first")
	}
	wantTokens(t, tokens, "b1", "a2")
	other := podOf("c")
	other.ServiceAccount = "other"
	if !tokens.Put(other, "v4", goodFor("c1", 3*time.Hour)) {
		t.Error("the first token of another account is not told to be")
	}
	wantTokens(t, tokens, "b1", "a2")
	tokens.Drop(podOf("a"), "v1")
	tokens.Drop(podOf("a"), "none")
	wantTokens(t, tokens, "b1", "a2")
	tokens.Drop(podOf("a"), "v2")
	tokens.Drop(podOf("a"), "v2")
	wantTokens(t, tokens, "b1")
	tokens.Drop(podOf("b"), "v3")
	wantTokens(t, tokens)
	tokens.Drop(other, "v4")
	if len(tokens.accounts) > 0 {
		t.Errorf("%d accounts are left", len(tokens.accounts))
	}
}

// A rejected token is tried last, until its pod has a new one.
func TestRejectedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := &Tokens{}
		a, b := goodFor("a1", 3*time.Hour), goodFor("b1", 2*time.Hour)
		tokens.Put(podOf("a"), "v", a)
		tokens.Put(podOf("b"), "v", b)
		wantTokens(t, tokens, "a1", "b1")
		tokens.reject(web.Account(), a)
		wantTokens(t, tokens, "b1", "a1")
		after(time.Second)
		tokens.reject(web.Account(), b)
		wantTokens(t, tokens, "a1", "b1")
		tokens.Put(podOf("a"), "v", a) // the same again
		tokens.Put(podOf("b"), "v", goodFor("b2", time.Hour))
		wantTokens(t, tokens, "b2", "a1")
		tokens.reject(web.Account(), b) // its pod has another one now
		wantTokens(t, tokens, "b2", "a1")
		tokens.reject(volume.ServiceAccount{Namespace: "shop", Name: "none"}, b)
	})
}

// An expired token is tried after all others that were not rejected, and is useless once it is rejected. The node's clock may be ahead, so
// it is tried once.
func TestTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := &Tokens{}
		a := goodFor("a1", time.Hour)
		tokens.Put(podOf("a"), "v", a)
		after(time.Hour)
		wantTokens(t, tokens, "a1")
		b := goodFor("b1", -2*time.Second)
		if tokens.Put(podOf("b"), "v", b) {
			t.Error("another token is told to be the first")
		}
		wantTokens(t, tokens, "a1", "b1")
		tokens.reject(web.Account(), a)
		wantTokens(t, tokens, "b1")
		tokens.reject(web.Account(), b)
		wantTokens(t, tokens)
		if !tokens.Put(podOf("a"), "v", goodFor("a2", time.Hour)) {
			t.Error("the first token after all have expired is not told to be")
		}
		wantTokens(t, tokens, "a2")
		if tokens.Put(podOf("b"), "v", b) { // the same again
			t.Error("a token that is of no use is told to be the first")
		}
		wantTokens(t, tokens, "a2")
	})
}

// TestNoTokenFollowsARedirect: the API server redirects each request to another server, which must never get a pod's token.
func TestNoTokenFollowsARedirect(t *testing.T) {
	for _, code := range []int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			var stolen, asked atomic.Int32
			thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.Header.Get("Authorization"), "a1") {
					stolen.Add(1)
				}
			}))
			defer thief.Close()
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				http.Redirect(w, r, thief.URL+r.URL.Path, code)
			}))
			defer api.Close()
			tokens, transport := &Tokens{}, &http.Transport{}
			defer transport.CloseIdleConnections()
			tokens.Put(podOf("a"), "v", goodFor("a1", time.Hour))
			wrapped := tokens.Wrap(transport)
			client := must.Get(authorizationclient.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, Transport: wrapped}))(t)
			if allowed, err := AskWith(client.SelfSubjectAccessReviews(), tokens)(t.Context(), web.Account(), ref("db"), "watch", volume.Token{}); allowed || err == nil {
				t.Errorf("a review: allowed %t, %v", allowed, err)
			}
			url := api.URL + "/api/v1/namespaces/shop/secrets/db"
			get := must.Get(http.NewRequestWithContext(As(t.Context(), web.Account()), http.MethodGet, url, http.NoBody))(t)
			answer, err := (&http.Client{Transport: wrapped}).Do(get)
			if err == nil {
				_ = answer.Body.Close()
				t.Errorf("a get: %s", answer.Status)
			}
			if stolen.Load() > 0 || asked.Load() != 2 {
				t.Errorf("%d of %d requests took the token to another server", stolen.Load(), asked.Load())
			}
		})
	}
}
