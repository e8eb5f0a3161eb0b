// Package requests decides when a request to the API server is sent. Few requests wait for an answer at the same time, one request of a
// client opens a connection, and after a failure that concerns a whole identity, one request tries for all.
//
// It owns the slots, the turns to dial, the pauses and their jitter. It must not know what is requested or with which credential, and it
// reads nothing of an answer's body.
package requests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	ordinarySlots = 12
	urgentSlots   = 4
	// slotTimeout is how long a request without an answer keeps its slot.
	slotTimeout = time.Second
	// unusedTime is how long no request must have asked for a gate before it is forgotten, open or closed: the account's pods are gone. It
	// is much longer than a request waits or takes, so none is at the gate then.
	unusedTime = 5 * time.Minute
)

// AnswerTimeout limits the time until the headers of an answer. It is the ResponseHeaderTimeout of the base transport.
const AnswerTimeout = 30 * time.Second

// Meta says for whom a request is sent.
type Meta struct {
	// Account is the account whose rights, and perhaps whose token, the request has. Zero stands for the plugin's own account or, if the
	// client impersonates the node, for the node.
	Account volume.ServiceAccount
	// Urgent means that a publish waits for the answer. For has the pods whose publishes wait; it may be nil.
	Urgent bool
	For    *Pods
	// Alone means that the request has a credential of its own. Its result does not concern the account, and it does not wait at the
	// account's gate.
	Alone bool
	// Whole means that the request keeps its slot until its body is closed, because the answer is short and read at once. Otherwise it keeps
	// the slot until the headers come: a watch lasts.
	Whole bool
}

type metaKey struct{}

// With returns a context for requests with the given Meta.
func With(ctx context.Context, m Meta) context.Context { return context.WithValue(ctx, metaKey{}, m) }

// MetaOf returns the Meta that With stored in ctx, or the zero Meta.
func MetaOf(ctx context.Context) Meta {
	m, _ := ctx.Value(metaKey{}).(Meta)
	return m
}

// CredentialError is the error of a base transport that sent nothing because the request's account has no credential. All requests of the
// account then wait until OnNewCredential or the next try.
type CredentialError struct{ Err error }

// Error returns the text of the cause.
func (e *CredentialError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *CredentialError) Unwrap() error { return e.Err }

// Requests limits and paces the requests of all clients of a process. All methods are safe for concurrent use. It has no goroutine.
//
//   - At most 12 requests are in flight, or 16 with urgent ones. A request without the headers of an answer stops counting
//     after a second, so that objects without an answer don't delay others for long. The pods that wait take turns.
//   - After a failure of the transport, a 401 or a 503, all requests of the same identity wait. The pauses grow from 0.25 s
//     to 5 s if there is no answer, and to 30 s if there is one. After a pause one request tries for all.
//   - A 429 concerns only its own request. The sender obeys its Retry-After.
type Requests struct {
	// slots has a slot for each request in flight.
	slots             turns
	underWay, waiting atomic.Int64
	// refused has room for one signal.
	refused chan struct{}

	mu         sync.Mutex
	identities map[identity]*gate
	// asNode means that a client impersonates the node. Then reads without an account have the node's rights.
	asNode bool
}

// identity is who sends a request, as the API server sees it. Requests of one identity share failures.
type identity struct {
	account volume.ServiceAccount
	// node means that a request without an account impersonates the node.
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

// New returns a Requests with all gates open.
func New() *Requests {
	return &Requests{
		slots:   turns{free: ordinarySlots + urgentSlots, ordinary: ordinarySlots},
		refused: make(chan struct{}, 1), identities: map[identity]*gate{},
	}
}

// Wrap returns a transport that sends each request with base when it is its turn. It must be the outermost transport, so that a request
// waits before it gets a credential. own means that requests without an Account have the plugin's own rights. Otherwise they impersonate
// the node.
func (r *Requests) Wrap(base http.RoundTripper, own bool) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asNode = r.asNode || !own
	return &transport{r, base, own}
}

// Refused returns a channel that gets a signal after the API server has refused a request with the plugin's own rights (403).
func (r *Requests) Refused() <-chan struct{} { return r.refused }

// gateOf returns the gate of an identity.
func (r *Requests) gateOf(who identity) *gate {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.identities[who]
	if g == nil {
		r.forgetUnused()
		g = &gate{name: who.String()}
		r.identities[who] = g
	}
	g.use()
	return g
}

// forgetUnused forgets the gates of identities that send no requests any more. The caller holds mu.
func (r *Requests) forgetUnused() {
	maps.DeleteFunc(r.identities, func(_ identity, g *gate) bool { return g.isUnused() })
}

// OnNewCredential says that an account has another credential. Requests that wait for a credential continue.
func (r *Requests) OnNewCredential(account volume.ServiceAccount) {
	r.gateOf(identity{account: account}).renew()
}

// Err returns why reads of an account wait, and since when. err is nil if they don't wait. If the API server has answered, it is an API
// error without any text of the answer.
func (r *Requests) Err(account volume.ServiceAccount) (since time.Time, err error) {
	r.mu.Lock()
	g := r.identities[identity{account: account, node: r.asNode && account == volume.ServiceAccount{}}]
	r.mu.Unlock()
	if g == nil {
		return since, nil
	}
	return g.state()
}

// State is the state of a Requests at one moment.
type State struct {
	// UnderWay is the number of requests that have a slot. Waiting is the number of those that wait for a slot or at a gate.
	UnderWay, Waiting int64
	// Closed counts the identities whose requests wait, by reason.
	Closed map[Reason]int
}

// State returns the present state.
func (r *Requests) State() State {
	s := State{UnderWay: r.underWay.Load(), Waiting: r.waiting.Load(), Closed: map[Reason]int{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetUnused()
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

// WrappedRoundTripper returns the base transport, so that client-go can find it.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.base }

// RoundTrip waits for the request's turn and sends it. It returns when the headers of the answer have arrived.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, m := req.Context(), MetaOf(req.Context())
	g := &gate{} // no other request waits at it
	if !m.Alone {
		g = t.requests.gateOf(identity{account: m.Account, node: !t.own && m.Account == volume.ServiceAccount{}})
	}
	epoch, releaseSlot, err := t.requests.admit(ctx, g, m)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a transport must close it
		}
		return nil, err
	}
	timer := time.AfterFunc(slotTimeout, releaseSlot)
	isKept := false
	defer func() {
		if !isKept {
			timer.Stop()
			releaseSlot()
		}
	}()
	looking, connected, ended := traceConnection(ctx)
	defer ended()
	resp, err := t.base.RoundTrip(req.WithContext(looking))
	recordResult(ctx, g, epoch, connected(), resp, err)
	if err == nil && t.own && resp.StatusCode == http.StatusForbidden && m.Account == (volume.ServiceAccount{}) {
		select {
		case t.requests.refused <- struct{}{}:
		default: // a signal is pending already
		}
	}
	if err == nil && m.Whole {
		isKept = true
		resp.Body = &wholeBody{resp.Body, timer, releaseSlot}
	}
	return resp, err
}

// wholeBody is the body of an answer to a request with Meta.Whole.
type wholeBody struct {
	io.ReadCloser
	timer       *time.Timer
	releaseSlot func()
}

// Close also releases the request's slot.
func (b *wholeBody) Close() error {
	b.timer.Stop()
	b.releaseSlot()
	return b.ReadCloser.Close()
}

// admit waits at the gate and for a slot. The error is the cause of ctx. releaseSlot is idempotent.
func (r *Requests) admit(ctx context.Context, g *gate, m Meta) (epoch int, releaseSlot func(), err error) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	for {
		if epoch, err = g.enter(ctx); err != nil {
			return 0, nil, err
		}
		if releaseSlot, err = r.takeSlot(ctx, m); err != nil {
			g.recordNoResult(epoch)
			return 0, nil, err
		}
		if !g.hasClosedSince(epoch) {
			return epoch, releaseSlot, nil
		}
		releaseSlot() // the gate has closed meanwhile
	}
}

// takeSlot waits for a slot. release is idempotent.
func (r *Requests) takeSlot(ctx context.Context, m Meta) (release func(), err error) {
	free, err := r.slots.take(ctx, m.Urgent, m.For)
	if err != nil {
		return nil, err
	}
	r.underWay.Add(1)
	return sync.OnceFunc(func() {
		r.underWay.Add(-1)
		free()
	}), nil
}

// recordResult reports the result of a request to the gate. connected means that the request had a connection.
func recordResult(ctx context.Context, g *gate, epoch int, connected bool, resp *http.Response, err error) {
	var late net.Error
	switch {
	case err == nil && isIdentityWide(resp.StatusCode):
		g.fail(epoch, answerError(resp.StatusCode))
	case err == nil:
		g.succeed(epoch)
	case errors.As(err, new(*CredentialError)):
		g.fail(epoch, err)
	case ctx.Err() != nil, connected && errors.As(err, &late) && late.Timeout(), errors.As(err, new(http2.StreamError)):
		g.recordNoResult(epoch) // one object gets no answer, but the connection works
	default:
		g.fail(epoch, unreachableError(err))
	}
}

// isIdentityWide reports whether an answer with this code concerns all requests of the identity.
func isIdentityWide(code int) bool {
	return code == http.StatusUnauthorized || code == http.StatusServiceUnavailable
}

// answerError returns the API error for an answer, without any text of its body.
func answerError(code int) error {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false)
	err.ErrStatus.Message = fmt.Sprintf("the API server answered %d %s", code, err.ErrStatus.Reason)
	return err
}
