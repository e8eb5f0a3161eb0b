package authz

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// wire is an API server as a client's base transport sees it. It accepts some tokens.
type wire struct {
	accepts []string
	err     error
	// tried has the tokens that arrived, and bodies the body that came with each.
	tried, bodies []string
	open          int
	// meta is that of the last request.
	meta requests.Meta
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
	w.tried, w.bodies, w.meta = append(w.tried, token), append(w.bodies, body), requests.MetaOf(req.Context())
	if w.err != nil {
		return nil, w.err
	}
	code, text := http.StatusCreated, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`
	if !slices.Contains(w.accepts, token) {
		code, text = http.StatusUnauthorized, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`
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

// reviewsOver returns a client of the reviews of an API server that is reached through the tokens' transport.
func reviewsOver(t *testing.T, tokens *Tokens, w *wire) authorizationclient.SelfSubjectAccessReviewInterface {
	t.Helper()
	config := &rest.Config{
		Host: "http://api", QPS: -1, Transport: tokens.Wrap(w),
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
	}
	return must.Get(authorizationclient.NewForConfig(config))(t).SelfSubjectAccessReviews()
}

func askOver(t *testing.T, tokens *Tokens, w *wire) (bool, error) {
	t.Helper()
	allowed, err := AskWith(reviewsOver(t, tokens, w), tokens)(t.Context(), web.Account(), ref("db"), "watch", volume.Token{})
	if w.open != 0 {
		t.Errorf("%d answers are not closed", w.open)
	}
	return allowed, err
}

// putThree gives each of three pods of shop/web a token. a1 is the first choice.
func putThree(tokens *Tokens) {
	for i, uid := range []types.UID{"a", "b", "c"} {
		tokens.Put(podOf(uid), "v", goodFor(string(uid)+"1", time.Duration(9-i)*time.Hour))
	}
}

// A request without a body is tried again, too. One whose body can't be sent again is not.
func TestWhatIsTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		body  io.Reader
		tried []string
	}{
		"no body":               {nil, []string{"a1", "b1"}},
		"a body to send again":  {strings.NewReader("{}"), []string{"a1", "b1"}},
		"a body that goes once": {io.MultiReader(strings.NewReader("{}")), []string{"a1"}},
	} {
		t.Run(name, func(t *testing.T) {
			tokens, w := &Tokens{}, &wire{accepts: []string{"b1"}}
			putThree(tokens)
			req := must.Get(http.NewRequestWithContext(As(t.Context(), web.Account()), http.MethodPost, "http://api/", test.body))(t)
			resp, err := tokens.Wrap(w).RoundTrip(req)
			must.Do(t, err)
			if err := resp.Body.Close(); err != nil || !slices.Equal(w.tried, test.tried) || w.open != 0 {
				t.Errorf("tried %q, want %q; %d answers are open, %v", w.tried, test.tried, w.open, err)
			}
		})
	}
}

// After Unauthorized the next pod's token is tried, with the same body, and one that was accepted is the first choice from then on. An API
// server that accepts none isn't asked with all tokens of a full node at the same time, and its answer is no refusal of the right. If a
// node's clock is ahead, valid tokens look expired: the API server decides, once.
func TestTheNextTokenIsTried(t *testing.T) {
	type try struct {
		accepts, tried string
		fails          func(error) bool // nil for none
	}
	isNoToken := func(err error) bool { return errors.Is(err, ErrNoToken) }
	for name, test := range map[string]struct {
		put   func(tokens *Tokens)
		tries []try
	}{
		"the second": {putThree, []try{{"b1", "a1 b1", nil}, {"b1", "b1", nil}}},
		"none of four": {func(tokens *Tokens) {
			putThree(tokens)
			tokens.Put(podOf("d"), "v", goodFor("d1", time.Hour))
		}, []try{{"", "a1 b1 c1", apierrors.IsUnauthorized}, {"d1", "d1", nil}}},
		"an expired one": {func(tokens *Tokens) {
			tokens.Put(podOf("a"), "v", goodFor("a1", -2*time.Hour))
		}, []try{{"a1", "a1", nil}, {"", "a1", apierrors.IsUnauthorized}, {"", "", isNoToken}}},
	} {
		tokens := &Tokens{}
		test.put(tokens)
		for i, try := range test.tries {
			w := &wire{accepts: []string{try.accepts}}
			allowed, err := askOver(t, tokens, w)
			if allowed != (try.fails == nil) || allowed != (err == nil) || err != nil && !try.fails(err) {
				t.Errorf("%s, question %d: got %t, %v", name, i, allowed, err)
			}
			if got := strings.Join(w.tried, " "); got != try.tried {
				t.Errorf("%s, question %d: tried %q, want %q", name, i, got, try.tried)
			}
			if bodies := slices.Compact(w.bodies); len(bodies) > 1 || slices.Contains(bodies, "") {
				t.Errorf("%s, question %d: the bodies %q came", name, i, bodies)
			}
		}
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
	if _, err := reviewsOver(t, tokens, w).Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{}); !errors.Is(err, errNobody) {
		t.Errorf("got %v", err)
	}
	if len(w.tried) > 0 {
		t.Errorf("%q came", w.tried)
	}
}

func TestAskWith(t *testing.T) {
	for name, test := range reviews() {
		s := &selfServer{server{status: test.status, err: test.err}}
		tokens := &Tokens{}
		putThree(tokens)
		test.check(t, name, AskWith(s, tokens), ref("db"))
	}
}

// A question with a token is sent with exactly that token, whatever other pods of the account have.
func TestAQuestionWithAToken(t *testing.T) {
	for token, is := range map[string]func(error) bool{
		"x1":  func(err error) bool { return err == nil },
		"bad": apierrors.IsUnauthorized,
	} {
		tokens, w := &Tokens{}, &wire{accepts: []string{"x1", "a1"}}
		putThree(tokens)
		_, err := AskWith(reviewsOver(t, tokens, w), tokens)(t.Context(), web.Account(), ref("db"), "get", goodFor(token, time.Hour))
		if !is(err) || !slices.Equal(w.tried, []string{token}) {
			t.Errorf("%q came: %v", w.tried, err)
		}
	}
}

// TestForWhomAQuestionIsSent: a question keeps what its context says of the sender. One with a token of its own does not wait for the account's
// other requests, and its refusal does not have them wait.
func TestForWhomAQuestionIsSent(t *testing.T) {
	sender := requests.Meta{Urgent: true, For: requests.For("a"), Whole: true}
	for name, test := range map[string]struct {
		token volume.Token
		alone bool
	}{
		"any token of the account": {},
		"a token of its own":       {goodFor("x1", time.Hour), true},
	} {
		tokens, w := &Tokens{}, &wire{accepts: []string{"x1", "a1"}}
		putThree(tokens)
		must.Get(AskWith(reviewsOver(t, tokens, w), tokens)(requests.With(t.Context(), sender), web.Account(), ref("db"), "get", test.token))(t)
		want := sender
		want.Account, want.Alone = web.Account(), test.alone
		expect.Equal(t, name, w.meta, want)
	}
}

// jwt returns a token with claims. This process cannot see that it is not genuine.
func jwt(claims string) volume.Token {
	return goodFor("head."+base64.RawURLEncoding.EncodeToString([]byte(claims))+".signature", time.Hour)
}

// A token belongs to the pod if it says so. An error reveals nothing of it except its subject.
func TestCheck(t *testing.T) {
	const text = "the token is not the pod's own"
	for name, test := range map[string]struct {
		token volume.Token
		want  string
	}{
		"the pod's":           {jwt(`{"sub":"system:serviceaccount:shop:web","kubernetes.io":{"pod":{"uid":"x"}}}`), ""},
		"of no pod":           {jwt(`{"sub":"system:serviceaccount:shop:web"}`), ""},
		"another account's":   {jwt(`{"sub":"system:serviceaccount:shop:other","kubernetes.io":{"pod":{"uid":"x"}}}`), text + `: pod shop/x runs as service account shop/web, the token is that of "system:serviceaccount:shop:other"`},
		"another namespace's": {jwt(`{"sub":"system:serviceaccount:mall:web"}`), text + `: pod shop/x runs as service account shop/web, the token is that of "system:serviceaccount:mall:web"`},
		"another pod's":       {jwt(`{"sub":"system:serviceaccount:shop:web","kubernetes.io":{"pod":{"uid":"y"}}}`), text + ": it is bound to another pod than shop/x with the UID x"},
		"nobody's":            {jwt(`{}`), text + `: pod shop/x runs as service account shop/web, the token is that of ""`},
		"no claims":           {jwt(`hunter2`), text + ": it has no claims that can be read"},
		"no base64":           {goodFor("a.hunter2!.c", time.Hour), text + ": it has no claims that can be read"},
		"no token":            {goodFor("hunter2", time.Hour), text + ": it is not a JSON Web Token"},
		"none":                {volume.Token{}, text + ": it is not a JSON Web Token"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			err := (&Tokens{}).Check(podOf("x"), test.token)
			if err != nil {
				got = err.Error()
			}
			if got != test.want || err != nil && !errors.Is(err, ErrNotThePods) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// selfServer answers reviews of the sender's own rights.
type selfServer struct{ server }

func (s *selfServer) Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	answer, err := s.server.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: review.Spec.ResourceAttributes},
	}, opts)
	return &authorizationv1.SelfSubjectAccessReview{Status: answer.Status}, err
}

// A token is in no log at any verbosity, nor in an error, whatever fails.
func TestTokensAreNotLogged(t *testing.T) {
	ctx := klog.NewContext(t.Context(), leaklog.New(t, io.Discard))
	for name, w := range map[string]*wire{
		"accepted":     {},
		"rejected":     {},
		"out of reach": {err: errAway},
	} {
		tokens, token := &Tokens{}, volume.NewToken(leak.NewToken(), time.Now().Add(time.Hour))
		tokens.Put(podOf("a"), "v", token)
		if name == "accepted" {
			w.accepts = []string{token.Reveal()}
		}
		ask := AskWith(reviewsOver(t, tokens, w), tokens)
		_, askErr := ask(ctx, web.Account(), ref("db"), "watch", volume.Token{})
		_, proveErr := ask(ctx, web.Account(), ref("db"), "watch", token)
		checkErr := tokens.Check(podOf("a"), token)
		if err := leak.Check(name, fmt.Sprintf("%+v %+v %+v %#v %+v", askErr, proveErr, checkErr, token, tokens)); err != nil {
			t.Error(err)
		}
		if len(w.tried) != 2 || w.tried[0] != token.Reveal() || checkErr == nil {
			t.Errorf("%s: %d requests with the token, %v", name, len(w.tried), checkErr)
		}
	}
}
