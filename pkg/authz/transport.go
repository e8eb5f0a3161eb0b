package authz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// maxAttempts limits the tokens with which one request is tried. A node may have a hundred pods of one account, and an API server that is
// starting may reject all of their tokens.
const maxAttempts = 3

// errNobody says that a request names no account. It must not be sent with another account's rights.
var errNobody = errors.New("the request names no service account whose token could be used")

// errRedirected says that a request follows a redirect. The token may only be sent to the API server.
var errRedirected = errors.New("redirected: a pod's token goes to the API server only")

// tokenKey is the context key for the token that a request must carry, if that is not any token of the account.
type tokenKey struct{}

// As returns a context for requests that carry a token of the account.
func As(ctx context.Context, account volume.ServiceAccount) context.Context {
	m := requests.MetaOf(ctx)
	m.Account = account
	return requests.With(ctx, m)
}

// withToken returns a context for requests that carry this token of the account. Their results don't concern the account's other tokens,
// and they don't wait for them.
func withToken(ctx context.Context, account volume.ServiceAccount, token volume.Token) context.Context {
	m := requests.MetaOf(ctx)
	m.Account, m.Alone = account, true
	return context.WithValue(requests.With(ctx, m), tokenKey{}, token)
}

// Wrap returns a transport that sends every request with base and with the token that the request's context asks for; see As. A request
// whose context asks for none fails, and so does one that follows a redirect. After an Unauthorized answer the transport tries another
// pod's token.
func (t *Tokens) Wrap(base http.RoundTripper) http.RoundTripper {
	return &transport{tokens: t, base: base}
}

// transport is safe for concurrent use if its base is.
type transport struct {
	tokens *Tokens
	base   http.RoundTripper
}

// WrappedRoundTripper returns the base transport, so that client-go can find it.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.base }

// RoundTrip sends one request, or several if tokens are not accepted.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Response != nil {
		return nil, unsent(req, errRedirected)
	}
	account := requests.MetaOf(req.Context()).Account
	if account == (volume.ServiceAccount{}) {
		return nil, unsent(req, errNobody)
	}
	var tokens []volume.Token
	if token, ok := req.Context().Value(tokenKey{}).(volume.Token); ok {
		tokens = append(tokens, token)
	} else {
		tokens = t.tokens.take(account)
	}
	if len(tokens) == 0 || tokens[0].Reveal() == "" {
		return nil, unsent(req, noToken(account))
	}
	tokens = tokens[:min(len(tokens), maxAttempts)]
	for i, token := range tokens {
		attempt, err := withHeader(req, token, i)
		if err != nil {
			return nil, err
		}
		resp, err := t.base.RoundTrip(attempt)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		t.tokens.reject(account, token)
		if i == len(tokens)-1 || req.Body != nil && req.GetBody == nil {
			return resp, nil
		}
		discard(resp)
	}
	return nil, errNobody // not reached: there was at least one token
}

// withHeader returns a copy of the request with a token, because a transport must not change the request. The first attempt uses the
// request's body, and the others use copies.
func withHeader(req *http.Request, token volume.Token, attempt int) (*http.Request, error) {
	clone := req.Clone(req.Context())
	clone.Header.Set("Authorization", "Bearer "+token.Reveal())
	if attempt == 0 || req.Body == nil {
		return clone, nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, fmt.Errorf("send the request again with another token: %w", err)
	}
	clone.Body = body
	return clone, nil
}

// discard reads the rest of an answer, so that its connection can be reused.
func discard(resp *http.Response) {
	const most = 64 << 10
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, most)) // Close ends a longer answer
	_ = resp.Body.Close()
}

// unsent returns the error for a request that is not sent. It closes the body, as a transport must.
func unsent(req *http.Request, err error) error {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return &requests.CredentialError{Err: err}
}
