// Package requests decides when a request to the API server is sent: few wait for an answer at a time, one of a client makes
// a connection, and after a failure that concerns all of an identity, one tries for all.
//
// It owns the slots, the turns to dial, the pauses and their jitter. It must not know what is asked for, nor with which
// credential, and reads no byte of an answer's body.
package requests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	ordinarySlots = 12
	urgentSlots   = 4
	// slotTime is how long a request has its slot that has no answer.
	slotTime = time.Second
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
//   - At most 12 requests are under way, and 16 with urgent ones. One that has no answer's headers after a second no longer
//     counts, so objects without an answer hold up nobody for long.
//   - After a failure of the transport, a 401 or a 503 the requests of the identity wait that the API server sees: in pauses
//     that grow from 0.25 s to 5 s without an answer, to 30 s with one. Then one tries for all.
//   - A 429 is of one request, whose sender obeys its Retry-After: the API server decides by what it was asked.
type Requests struct {
	// all has a place for each request that is under way, ordinary one for each that isn't urgent.
	all, ordinary     *semaphore.Weighted
	underWay, waiting atomic.Int64
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
		all: semaphore.NewWeighted(ordinarySlots + urgentSlots), ordinary: semaphore.NewWeighted(ordinarySlots),
		refused: make(chan struct{}, 1), identities: map[identity]*gate{},
	}
}

// Wrap returns a transport that sends requests by base when their turn has come. It is the outermost one, so that a
// request waits before it gets a credential. own says that requests without an Account have the plugin's own rights; else they
// impersonate the node.
func (r *Requests) Wrap(base http.RoundTripper, own bool) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asNode = r.asNode || !own
	return &transport{r, base, own}
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
		g = &gate{name: who.String()}
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
	g := r.identities[identity{account: account, node: r.asNode && account == volume.ServiceAccount{}}]
	r.mu.Unlock()
	if g == nil {
		return since, nil
	}
	return g.state()
}

// State is what a Requests does at one moment.
type State struct {
	// UnderWay are the requests that have a slot, and Waiting those that wait for one, or at a gate.
	UnderWay, Waiting int64
	// Closed counts the identities whose requests wait, by the reason.
	Closed map[Reason]int
}

// State returns what it does now.
func (r *Requests) State() State {
	s := State{UnderWay: r.underWay.Load(), Waiting: r.waiting.Load(), Closed: map[Reason]int{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.identities {
		if _, err := g.state(); err != nil {
			s.Closed[reasonOf(err)]++
		}
	}
	return s
}

type transport struct {
	requests *Requests
	base     http.RoundTripper
	own      bool
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.base }

// RoundTrip sends a request when its turn has come, and returns when the headers of the answer have.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, m := req.Context(), MetaOf(req.Context())
	g := &gate{} // nobody waits at it
	if !m.Alone {
		g = t.requests.gateOf(identity{account: m.Account, node: !t.own && m.Account == volume.ServiceAccount{}})
	}
	epoch, releaseSlot, err := t.requests.admit(ctx, g, m.Urgent)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as a transport must
		}
		return nil, err
	}
	defer releaseSlot()
	defer time.AfterFunc(slotTime, releaseSlot).Stop()
	looking, connected, ended := lookForConnection(ctx)
	defer ended()
	resp, err := t.base.RoundTrip(req.WithContext(looking))
	learn(ctx, g, epoch, connected(), resp, err)
	if err == nil && t.own && resp.StatusCode == http.StatusForbidden && m.Account == (volume.ServiceAccount{}) {
		select {
		case t.requests.refused <- struct{}{}:
		default: // one waits already
		}
	}
	return resp, err
}

// admit waits at the gate and for a slot. The error is the cause of ctx. More than one call of releaseSlot does no harm.
func (r *Requests) admit(ctx context.Context, g *gate, urgent bool) (epoch int, releaseSlot func(), err error) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	for {
		if epoch, err = g.enter(ctx); err != nil {
			return 0, nil, err
		}
		if releaseSlot, err = r.takeSlot(ctx, urgent); err != nil {
			g.leave(epoch)
			return 0, nil, err
		}
		if !g.holds(epoch) {
			return epoch, releaseSlot, nil
		}
		releaseSlot() // the gate has closed meanwhile
	}
}

func (r *Requests) takeSlot(ctx context.Context, urgent bool) (release func(), err error) {
	if !urgent && r.ordinary.Acquire(ctx, 1) != nil {
		return nil, context.Cause(ctx)
	}
	releaseOrdinary := func() {
		if !urgent {
			r.ordinary.Release(1)
		}
	}
	if r.all.Acquire(ctx, 1) != nil {
		releaseOrdinary()
		return nil, context.Cause(ctx)
	}
	r.underWay.Add(1)
	return sync.OnceFunc(func() {
		r.underWay.Add(-1)
		r.all.Release(1)
		releaseOrdinary()
	}), nil
}

// learn tells the gate the outcome of a request. connected says that it had a connection.
func learn(ctx context.Context, g *gate, epoch int, connected bool, resp *http.Response, err error) {
	var late net.Error
	switch {
	case err == nil && closes(resp.StatusCode):
		g.fail(epoch, answered(resp.StatusCode))
	case err == nil:
		g.succeed(epoch)
	case errors.As(err, new(*CredentialError)):
		g.fail(epoch, err)
	case ctx.Err() != nil, connected && errors.As(err, &late) && late.Timeout(), errors.As(err, new(http2.StreamError)):
		g.leave(epoch) // one object has no answer, while its connection works
	default:
		g.fail(epoch, unreachable(err))
	}
}

// closes tells whether an answer concerns all requests of the identity.
func closes(code int) bool {
	return code == http.StatusUnauthorized || code == http.StatusServiceUnavailable
}

// answered returns the API error of an answer, without a word of its body.
func answered(code int) error {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false)
	err.ErrStatus.Message = fmt.Sprintf("the API server answered %d %s", code, err.ErrStatus.Reason)
	return err
}
