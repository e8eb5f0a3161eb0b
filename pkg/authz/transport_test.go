package authz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/pkg/volume"
)

// wire is an API server as seen from below a client: it accepts some tokens.
type wire struct {
	accepts []string
	err     error
	// user is what it says of whoever asks who they are.
	user authenticationv1.UserInfo
	// tried holds the tokens that came, and bodies what came with each.
	tried, bodies []string
	open          int
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	token := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	body := ""
	if req.Body != nil {
		data, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = string(data)
		_ = req.Body.Close()
	}
	w.tried, w.bodies = append(w.tried, token), append(w.bodies, body)
	if w.err != nil {
		return nil, w.err
	}
	code, text := http.StatusCreated, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`
	switch {
	case !slices.Contains(w.accepts, token):
		code, text = http.StatusUnauthorized, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`
	case strings.HasSuffix(req.URL.Path, "/selfsubjectreviews"):
		text = `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"` + w.user.Username + `","extra":{"authentication.kubernetes.io/pod-uid":["` + strings.Join(w.user.Extra[podUIDKey], `","`) + `"]}}}}`
	}
	w.open++
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: &tracked{Reader: strings.NewReader(text), closed: func() { w.open-- }},
	}, nil
}

type tracked struct {
	io.Reader
	closed func()
}

func (b *tracked) Close() error {
	b.closed()
	return nil
}

// overWire returns the client config of an API server that is reached by the tokens'
// transport.
func overWire(tokens *Tokens, w *wire) *rest.Config {
	return &rest.Config{
		Host: "http://api", QPS: -1, Transport: tokens.Wrap(w),
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
	}
}

func askOver(t *testing.T, tokens *Tokens, w *wire) (bool, error) {
	t.Helper()
	client, err := authorizationclient.NewForConfig(overWire(tokens, w))
	if err != nil {
		t.Fatal(err)
	}
	allowed, err := AskWith(client.SelfSubjectAccessReviews())(t.Context(), web.Account(), ref("db"), "watch")
	if w.open != 0 {
		t.Errorf("%d answers are not closed", w.open)
	}
	return allowed, err
}

// putThree gives three pods of shop/web a token each, of which a1 is the first choice.
func putThree(tokens *Tokens) {
	for i, uid := range []types.UID{"a", "b", "c"} {
		tokens.Put(podOf(uid), "v", goodFor(string(uid)+"1", time.Duration(9-i)*time.Hour))
	}
}

func TestARequestCarriesTheTokenOfItsAccount(t *testing.T) {
	tokens, w := &Tokens{}, &wire{accepts: []string{"a1"}}
	putThree(tokens)
	if allowed, err := askOver(t, tokens, w); err != nil || !allowed {
		t.Errorf("got %t, %v", allowed, err)
	}
	if !slices.Equal(w.tried, []string{"a1"}) || !strings.Contains(w.bodies[0], `"verb":"watch"`) {
		t.Errorf("%q came with %q", w.tried, w.bodies)
	}
}

// On Unauthorized the next pod's token is tried, with the same body, and is the first choice
// from then on.
func TestTheNextTokenIsTried(t *testing.T) {
	tokens, w := &Tokens{}, &wire{accepts: []string{"b1"}}
	putThree(tokens)
	if allowed, err := askOver(t, tokens, w); err != nil || !allowed {
		t.Errorf("got %t, %v", allowed, err)
	}
	if !slices.Equal(w.tried, []string{"a1", "b1"}) || w.bodies[0] == "" || w.bodies[0] != w.bodies[1] {
		t.Errorf("%q came with %q", w.tried, w.bodies)
	}
	w.tried = nil
	if _, err := askOver(t, tokens, w); err != nil || !slices.Equal(w.tried, []string{"b1"}) {
		t.Errorf("then %q came, %v", w.tried, err)
	}
}

// An API server that accepts none isn't asked with all tokens of a full node at once, and
// the answer is no refusal of the right.
func TestNoTokenIsAccepted(t *testing.T) {
	tokens, w := &Tokens{}, &wire{}
	putThree(tokens)
	tokens.Put(podOf("d"), "v", goodFor("d1", time.Hour))
	if allowed, err := askOver(t, tokens, w); allowed || !apierrors.IsUnauthorized(err) {
		t.Errorf("got %t, %v", allowed, err)
	}
	if !slices.Equal(w.tried, []string{"a1", "b1", "c1"}) {
		t.Errorf("%q came", w.tried)
	}
	w.tried, w.accepts = nil, []string{"d1"}
	if allowed, err := askOver(t, tokens, w); err != nil || !allowed || !slices.Equal(w.tried, []string{"d1"}) {
		t.Errorf("then %q came: %t, %v", w.tried, allowed, err)
	}
}

// A node whose clock is ahead takes good tokens for expired ones: the API server decides, once.
func TestTheAPIServerSaysWhatHasExpired(t *testing.T) {
	tokens, w := &Tokens{}, &wire{accepts: []string{"a1"}}
	tokens.Put(podOf("a"), "v", goodFor("a1", -2*time.Hour))
	if allowed, err := askOver(t, tokens, w); err != nil || !allowed {
		t.Errorf("got %t, %v", allowed, err)
	}
	w.accepts = nil
	if _, err := askOver(t, tokens, w); !apierrors.IsUnauthorized(err) {
		t.Errorf("got %v", err)
	}
	if _, err := askOver(t, tokens, w); !errors.Is(err, ErrNoToken) || len(w.tried) != 2 {
		t.Errorf("%q came: %v", w.tried, err)
	}
}

func TestFailuresOfTheWireArePassedOn(t *testing.T) {
	tokens, w := &Tokens{}, &wire{err: errAway}
	putThree(tokens)
	if _, err := askOver(t, tokens, w); !errors.Is(err, errAway) || !slices.Equal(w.tried, []string{"a1"}) {
		t.Errorf("%q came: %v", w.tried, err)
	}
}

// Without a token, and without an account, nothing is sent.
func TestNothingIsSentWithoutAToken(t *testing.T) {
	tokens, w := &Tokens{}, &wire{}
	other := podOf("a")
	other.ServiceAccount = "other"
	tokens.Put(other, "v", goodFor("o1", time.Hour))
	if _, err := askOver(t, tokens, w); !errors.Is(err, ErrNoToken) {
		t.Errorf("got %v", err)
	}
	putThree(tokens)
	client, err := authorizationclient.NewForConfig(overWire(tokens, w))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{}); !errors.Is(err, errNobody) {
		t.Errorf("got %v", err)
	}
	if len(w.tried) > 0 {
		t.Errorf("%q came", w.tried)
	}
}

func TestAskWith(t *testing.T) {
	for name, test := range reviews() {
		s := &selfServer{server{status: test.status, err: test.err}}
		test.check(t, name, AskWith(s), ref("db"))
	}
}

// Prove asks with the very token, whatever other pods of the claimed account have.
func TestProve(t *testing.T) {
	uid := func(uids ...string) map[string]authenticationv1.ExtraValue {
		return map[string]authenticationv1.ExtraValue{podUIDKey: uids}
	}
	for name, test := range map[string]struct {
		token string
		user  authenticationv1.UserInfo
		err   error
		is    func(error) bool
	}{
		"the pod's":           {token: "x1", user: authenticationv1.UserInfo{Username: "system:serviceaccount:shop:web", Extra: uid("x")}, is: func(err error) bool { return err == nil }},
		"another account's":   {token: "x1", user: authenticationv1.UserInfo{Username: "system:serviceaccount:shop:other", Extra: uid("x")}, is: isNotThePods},
		"another namespace's": {token: "x1", user: authenticationv1.UserInfo{Username: "system:serviceaccount:mall:web", Extra: uid("x")}, is: isNotThePods},
		"a person's":          {token: "x1", user: authenticationv1.UserInfo{Username: "web", Extra: uid("x")}, is: isNotThePods},
		"another pod's":       {token: "x1", user: authenticationv1.UserInfo{Username: "system:serviceaccount:shop:web", Extra: uid("y")}, is: isNotThePods},
		"none":                {token: "bad", is: func(err error) bool { return apierrors.IsUnauthorized(err) && !isNotThePods(err) }},
		"no answer":           {token: "x1", err: errAway, is: func(err error) bool { return errors.Is(err, errAway) && !isNotThePods(err) }},
	} {
		t.Run(name, func(t *testing.T) {
			tokens, w := &Tokens{}, &wire{accepts: []string{"x1", "a1"}, user: test.user, err: test.err}
			putThree(tokens)
			client, err := authenticationclient.NewForConfig(overWire(tokens, w))
			if err != nil {
				t.Fatal(err)
			}
			err = NewAuthenticator(tokens, client.SelfSubjectReviews()).Prove(t.Context(), podOf("x"), volume.NewToken(test.token, time.Now().Add(time.Hour)))
			if !test.is(err) {
				t.Errorf("got %v", err)
			}
			if !slices.Equal(w.tried, []string{test.token}) {
				t.Errorf("%q came", w.tried)
			}
		})
	}
}

// selfServer answers reviews of whoever asks.
type selfServer struct{ server }

func (s *selfServer) Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	answer, err := s.server.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: review.Spec.ResourceAttributes},
	}, opts)
	return &authorizationv1.SelfSubjectAccessReview{Status: answer.Status}, err
}

func isNotThePods(err error) bool { return errors.Is(err, ErrNotThePods) }

// A token shows in no log at any verbosity, nor in an error, whatever fails.
func TestTokensAreNotLogged(t *testing.T) {
	ctx := klog.NewContext(t.Context(), leaklog.New(t, io.Discard))
	for name, w := range map[string]*wire{
		"accepted":     {user: authenticationv1.UserInfo{Username: "system:serviceaccount:shop:other"}},
		"rejected":     {},
		"out of reach": {err: errAway},
	} {
		tokens, token := &Tokens{}, volume.NewToken(leak.NewToken(), time.Now().Add(time.Hour))
		tokens.Put(podOf("a"), "v", token)
		if name == "accepted" {
			w.accepts = []string{token.Reveal()}
		}
		access, err := authorizationclient.NewForConfig(overWire(tokens, w))
		if err != nil {
			t.Fatal(err)
		}
		who, err := authenticationclient.NewForConfig(overWire(tokens, w))
		if err != nil {
			t.Fatal(err)
		}
		_, askErr := AskWith(access.SelfSubjectAccessReviews())(ctx, web.Account(), ref("db"), "watch")
		proveErr := NewAuthenticator(tokens, who.SelfSubjectReviews()).Prove(ctx, podOf("a"), token)
		if err := leak.Check(name, fmt.Sprintf("%+v %+v %#v %+v", askErr, proveErr, token, tokens)); err != nil {
			t.Error(err)
		}
		if len(w.tried) != 2 || w.tried[0] != token.Reveal() || proveErr == nil {
			t.Errorf("%s: %d requests with the token, %v", name, len(w.tried), proveErr)
		}
	}
}
