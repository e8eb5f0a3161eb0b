// Package requests decides when a request to the API server is sent: few wait for an answer at a time, one makes a
// connection, and after a failure that concerns many, one tries for all.
//
// It owns the slots, the pauses and their jitter. It must not know what is asked for, nor with which credential, and
// reads no byte of an answer's body.
package requests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	sharedSlots = 12
	urgentSlots = 4
	// slotTime is how long a request that has a connection, and no answer, has its slot.
	slotTime = time.Second
	// dialTime is how long a request may keep others from looking for a connection.
	dialTime = 5 * time.Second
	// maxAccounts is how many accounts are remembered that have no failure.
	maxAccounts = 1000
)

// AnswerTime is how long the headers of an answer may take: the base transport has it as its ResponseHeaderTimeout.
const AnswerTime = 30 * time.Second

// Meta says for whom a request is sent.
type Meta struct {
	// Account is whose rights it has, and maybe whose token; zero stands for the plugin or, where a client impersonates it,
	// for the node.
	Account volume.ServiceAccount
	// Urgent is for what a publish waits for.
	Urgent bool
	// Alone is for a request with a credential of its own: it says nothing of the account, and does not wait for it.
	Alone bool
}

type metaKey struct{}

// With returns a context for requests of m.
func With(ctx context.Context, m Meta) context.Context { return context.WithValue(ctx, metaKey{}, m) }

// MetaOf returns what With has put into ctx; the zero Meta for nothing.
func MetaOf(ctx context.Context) Meta {
	m, _ := ctx.Value(metaKey{}).(Meta)
	return m
}

// CredentialError is the error of a base transport that has sent nothing, as the account of the request has no
// credential. All requests of the account wait then, until Renewed or the next try.
type CredentialError struct{ Err error }

// Error returns the text of the cause.
func (e *CredentialError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *CredentialError) Unwrap() error { return e.Err }

// Requests bounds and paces the requests of all clients of a process. All methods are safe for concurrent use. It has no
// goroutine.
//
//   - At most 12 requests are under way, and 4 more urgent ones. One that has no answer's headers a second after it has a
//     connection no longer counts, so objects without an answer hold up nobody for long.
//   - One request of a client at a time looks for a connection, for 5 seconds at most: one new connection of HTTP/2 serves a
//     hundred.
//   - After a failure of the transport all requests wait, after a 401, 429 or 503 those of the identity that the API server
//     sees: in pauses that grow from 0.25 s to 5 and 30 s, or as long as Retry-After says, up to a minute. Then one tries for
//     all.
type Requests struct {
	// Each has a token for a request that is under way.
	shared, urgent chan struct{}
	node           *gate
	// refused has room for one signal.
	refused chan struct{}

	mu         sync.Mutex
	identities map[identity]*gate
	// asNode says that some client impersonates the node: it is that which reads objects without an account.
	asNode bool
}

// identity is what the API server sees of a request, which decides whose failures it shares.
type identity struct {
	account volume.ServiceAccount
	// node says that the request of no account impersonates the node.
	node bool
}

func (i identity) String() string {
	switch {
	case i.node:
		return "the node"
	case i.account == volume.ServiceAccount{}:
		return "the plugin's own account"
	}
	return i.account.String()
}

// New returns a Requests without a pause.
func New() *Requests {
	return &Requests{
		shared: make(chan struct{}, sharedSlots), urgent: make(chan struct{}, urgentSlots),
		node: &gate{name: "all accounts", max: maxNodePause}, refused: make(chan struct{}, 1), identities: map[identity]*gate{},
	}
}

// Wrap returns a transport that sends requests by base when their turn has come. It is the outermost one, so that a
// request waits before it gets a credential. own says that requests without an Account have the plugin's own rights; else they
// impersonate the node.
func (r *Requests) Wrap(base http.RoundTripper, own bool) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asNode = r.asNode || !own
	return &transport{r, base, own, make(chan struct{}, 1)}
}

// Refused returns what gets a signal after the API server has refused a request that had the plugin's own rights.
func (r *Requests) Refused() <-chan struct{} { return r.refused }

func (r *Requests) gateOf(who identity) *gate {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.identities[who]
	if g == nil {
		if len(r.identities) >= maxAccounts {
			maps.DeleteFunc(r.identities, func(_ identity, g *gate) bool { _, err := g.state(); return err == nil })
		}
		g = &gate{name: who.String(), max: maxPause}
		r.identities[who] = g
	}
	return g
}

// Renewed says that an account has another credential: its requests go on that wait for one.
func (r *Requests) Renewed(account volume.ServiceAccount) {
	r.gateOf(identity{account: account}).renew()
}

// Err returns why reads of an account wait, and since when; nil if they don't. The error is an API error if the API
// server has answered, and has no text of its answer.
func (r *Requests) Err(account volume.ServiceAccount) (since time.Time, err error) {
	r.mu.Lock()
	who := identity{account: account, node: r.asNode && account == volume.ServiceAccount{}}
	r.mu.Unlock()
	if since, err = r.gateOf(who).state(); err != nil {
		return since, err
	}
	return r.node.state()
}

type transport struct {
	requests *Requests
	base     http.RoundTripper
	own      bool
	// dial has a token for the request that looks for a connection.
	dial chan struct{}
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.base }

// RoundTrip sends a request when its turn has come, and returns when the headers of the answer have.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	turn, err := t.admit(ctx, MetaOf(ctx))
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as a transport must
		}
		return nil, err
	}
	defer turn.slot()
	defer turn.found()
	defer time.AfterFunc(dialTime, turn.found).Stop()
	var mu sync.Mutex
	var late *time.Timer // guarded by mu
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		turn.found()
		mu.Lock()
		defer mu.Unlock()
		if late == nil {
			late = time.AfterFunc(slotTime, turn.slot)
		}
	}})
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	mu.Lock()
	defer mu.Unlock()
	if late != nil {
		late.Stop()
	}
	turn.learn(ctx, late != nil, resp, err)
	if err == nil && t.own && resp.StatusCode == http.StatusForbidden && MetaOf(ctx).Account == (volume.ServiceAccount{}) {
		select {
		case t.requests.refused <- struct{}{}:
		default: // one waits already
		}
	}
	return resp, err
}

// turn is what a request has that may be sent.
type turn struct {
	account, node ticket
	// slot and found give back its slot, and its turn to look for a connection; more than once does no harm.
	slot, found func()
}

// admit waits for the gates, for a slot, and for the turn to look for a connection. The error is the cause of ctx.
func (t *transport) admit(ctx context.Context, m Meta) (got turn, err error) {
	r := t.requests
	var urgent chan struct{}
	if m.Urgent {
		urgent = r.urgent
	}
	account := &gate{max: maxPause} // nobody waits at it
	if !m.Alone {
		account = r.gateOf(identity{account: m.Account, node: !t.own && m.Account == volume.ServiceAccount{}})
	}
	for {
		if got.account, err = account.enter(ctx); err != nil {
			return got, err
		}
		if got.node, err = r.node.enter(ctx); err != nil {
			got.account.leave()
			return got, err
		}
		if got.slot, err = take(ctx, r.shared, urgent); err == nil {
			if got.found, err = take(ctx, t.dial, nil); err == nil {
				if !got.account.holds() && !got.node.holds() {
					return got, nil
				}
				got.found() // a gate has closed meanwhile
			}
			got.slot()
		}
		got.account.leave()
		got.node.leave()
		if err != nil {
			return got, err
		}
	}
}

// take takes a place of either, nil is none, and returns what gives it back.
func take(ctx context.Context, first, second chan struct{}) (release func(), err error) {
	select {
	case first <- struct{}{}:
		return sync.OnceFunc(func() { <-first }), nil
	case second <- struct{}{}:
		return sync.OnceFunc(func() { <-second }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// learn tells the gates the outcome. sent says that the request had a connection.
func (t turn) learn(ctx context.Context, sent bool, resp *http.Response, err error) {
	var late net.Error
	var reset http2.StreamError
	var unsent *CredentialError
	switch {
	case err == nil:
		t.node.succeed()
		if closes(resp.StatusCode) {
			t.account.fail(answered(resp), retryAfter(resp))
		} else {
			t.account.succeed()
		}
		return
	case errors.As(err, &unsent):
		t.node.leave()
		t.account.fail(err, 0)
		return
	case ctx.Err() != nil, sent && errors.As(err, &late) && late.Timeout(), errors.As(err, &reset):
		t.node.leave() // one object has no answer, while its connection works
	default:
		t.node.fail(unreachable(err), 0)
	}
	t.account.leave()
}

// closes tells whether an answer concerns all requests of the account.
func closes(code int) bool {
	return code == http.StatusUnauthorized || code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable
}

func retryAfter(resp *http.Response) time.Duration {
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return time.Duration(max(seconds, 0)) * time.Second
}

// answered returns the API error of an answer, without a word of its body.
func answered(resp *http.Response) error {
	err := apierrors.NewGenericServerResponse(resp.StatusCode, "", schema.GroupResource{}, "", "", 0, false)
	err.ErrStatus.Message = fmt.Sprintf("the API server answered %d %s", resp.StatusCode, err.ErrStatus.Reason)
	return err
}
