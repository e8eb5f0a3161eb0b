package authz

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// busyWire is a wire that has had too many requests with one token.
type busyWire struct {
	*wire
	busy string
}

func (w *busyWire) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(req.Header.Get("Authorization"), " "+w.busy) {
		return w.wire.RoundTrip(req)
	}
	w.tried = append(w.tried, w.busy)
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`)),
	}, nil
}

// pacedAsk returns what asks with the accounts' tokens, at a Pace, by a transport over a wire.
func pacedAsk(t *testing.T, tokens *Tokens, w *wire, transport http.RoundTripper) Ask {
	t.Helper()
	config := overWire(tokens, w)
	config.Transport = tokens.Wrap(transport)
	client, err := authorizationclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return AskWith(NewPaced(client.SelfSubjectAccessReviews(), NewPace(tokens)))
}

// What fails for one account's pods must not hold up another's: that it has no token, or that the
// API server has had too many requests of it. What fails for all is not sent for each.
func TestPacesOfAccounts(t *testing.T) {
	noisy := podOf("n")
	noisy.ServiceAccount = "noisy"
	for name, test := range map[string]struct {
		token string // that of the noisy account
		away  error
		fails func(error) bool // the noisy account's question, and each next one at once
		tried []string         // by two questions of the noisy account, and then one of web
		ok    bool             // web's question
	}{
		"no token":            {"", nil, func(err error) bool { return errors.Is(err, ErrNoToken) }, []string{"a1"}, true},
		"too many requests":   {"n1", nil, apierrors.IsTooManyRequests, []string{"n1", "a1"}, true},
		"no token accepted":   {"n2", nil, apierrors.IsUnauthorized, []string{"n2", "a1"}, true},
		"server is not there": {"n1", errors.New("refused"), func(err error) bool { return err != nil }, []string{"n1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tokens, w := &Tokens{}, &busyWire{wire: &wire{accepts: []string{"a1"}, err: test.away}, busy: "n1"}
				if test.away != nil {
					w.busy = "nobody's"
				}
				tokens.Put(podOf("a"), "v", goodFor("a1", time.Hour))
				if test.token != "" {
					tokens.Put(noisy, "v", goodFor(test.token, time.Hour))
				}
				ask := pacedAsk(t, tokens, w.wire, w)
				asks := func(account volume.Account) (bool, error) { return ask(t.Context(), account, ref("db"), "watch") }
				for range 2 {
					if _, err := asks(noisy.Account()); !test.fails(err) {
						t.Errorf("the noisy account's question: %v", err)
					}
				}
				if allowed, err := asks(web.Account()); allowed != test.ok || (err == nil) != test.ok {
					t.Errorf("another account's question: %t, %v", allowed, err)
				}
				if !slices.Equal(w.tried, test.tried) {
					t.Errorf("%q were sent, want %q", w.tried, test.tried)
				}
				w.tried, w.wire.err, w.busy, w.accepts = nil, nil, "nobody's", []string{"a1", "n1", "n2"}
				after(time.Second)
				for _, account := range []volume.Account{noisy.Account(), web.Account()} {
					if account == noisy.Account() && test.token == "" {
						continue
					}
					if allowed, err := asks(account); err != nil || !allowed {
						t.Errorf("after the pause: %t, %v", allowed, err)
					}
				}
			})
		})
	}
}

// TestANewTokenEndsOnePause: that of an account with too many requests goes on.
func TestANewTokenEndsOnePause(t *testing.T) {
	tokens := &Tokens{}
	tokens.Put(podOf("a"), "v", goodFor("a1", time.Hour))
	before := tokens.pausesOf(web.Account())
	tokens.Put(podOf("a"), "v", goodFor("a1", time.Hour))
	if same := tokens.pausesOf(web.Account()); same != before {
		t.Error("the same token ended a pause")
	}
	tokens.Put(podOf("b"), "v", goodFor("b1", time.Hour))
	if after := tokens.pausesOf(web.Account()); after.busy != before.busy || after.rejected == before.rejected {
		t.Errorf("before %p and %p, after %p and %p", before.busy, before.rejected, after.busy, after.rejected)
	}
}

// TestHangingReviewsOfOneAccount: the API server may have them wait in turn for long, and only them.
func TestHangingReviewsOfOneAccount(t *testing.T) {
	noisy := podOf("n")
	noisy.ServiceAccount = "noisy"
	synctest.Test(t, func(t *testing.T) {
		tokens := &Tokens{}
		tokens.Put(podOf("a"), "v", goodFor("a1", time.Hour))
		tokens.Put(noisy, "v", goodFor("n1", time.Hour))
		w := &hangingWire{wire: &wire{accepts: []string{"a1"}}, hangs: "n1"}
		ask := pacedAsk(t, tokens, w.wire, w)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := ask(ctx, noisy.Account(), ref("db"), "watch")
			cancel()
			if err == nil {
				t.Error("the noisy account has an answer")
			}
			if allowed, err := ask(t.Context(), web.Account(), ref("db"), "watch"); err != nil || !allowed {
				t.Errorf("another account's question: %t, %v", allowed, err)
			}
		}
		if w.hung != 1 {
			t.Errorf("%d questions of the noisy account were sent during its pause", w.hung)
		}
	})
}

// hangingWire is a wire that never answers one token.
type hangingWire struct {
	*wire
	hangs string
	hung  int
}

func (w *hangingWire) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(req.Header.Get("Authorization"), " "+w.hangs) {
		return w.wire.RoundTrip(req)
	}
	w.hung++
	<-req.Context().Done()
	return nil, req.Context().Err()
}
