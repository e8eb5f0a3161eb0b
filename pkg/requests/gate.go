package requests

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

const (
	// firstPause is how long a gate closes at first. Each next pause is twice as long, up to the gate's own maximum.
	firstPause   = 250 * time.Millisecond
	maxNodePause = 5 * time.Second
	maxPause     = 30 * time.Second
	// maxRetryAfter is the longest Retry-After that is obeyed.
	maxRetryAfter = time.Minute
	// probeTime is how long a probe has no answer before others probe too, maxProbes at once at most.
	probeTime = time.Second
	maxProbes = 8
	// quietTime is how long after a line of the log about a gate the next ones are details.
	quietTime = time.Minute
)

// gate holds up requests after a failure that concerns them all: it closes for a pause, then one request probes, and its
// success opens the gate. The pauses grow until then. It is safe for concurrent use, and has timers only.
type gate struct {
	// name is for the log, "" for a gate at which nobody waits, and max the longest pause; both are constant.
	name string
	max  time.Duration

	mu sync.Mutex
	// err is why the gate is closed, nil while it is open, and since is when it closed first.
	err   error
	since time.Time
	pause time.Duration
	// closed counts the pauses: what was sent before the present one says nothing new.
	closed int
	// opened is closed when the gate opens. Each token of probes lets one request probe.
	opened chan struct{}
	probes chan struct{}
	// logged is when the log was last told that the gate has closed, and told says that it is to be told of the end.
	logged time.Time
	told   bool
}

// ticket is a request's passage through a gate.
type ticket struct {
	gate   *gate
	closed int
	// hangs lets others probe; nil for what is no probe.
	hangs *time.Timer
}

// enter waits until the gate is open, or the request is the probe. The error is the cause of ctx.
func (g *gate) enter(ctx context.Context) (ticket, error) {
	for {
		g.mu.Lock()
		t, opened, probes := ticket{gate: g, closed: g.closed}, g.opened, g.probes
		open := g.err == nil
		g.mu.Unlock()
		if open {
			return t, nil
		}
		select {
		case <-opened:
		case <-probes:
			g.mu.Lock()
			t.closed = g.closed
			g.mu.Unlock()
			// The probe may be for an object that gets no answer.
			t.hangs = time.AfterFunc(probeTime, func() { g.admit(t.closed, 2) })
			return t, nil
		case <-ctx.Done():
			return ticket{}, context.Cause(ctx)
		}
	}
}

// admit lets n requests probe if the pause is still that of closed.
func (g *gate) admit(closed, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for range n {
		if g.err == nil || g.closed != closed {
			return
		}
		select {
		case g.probes <- struct{}{}:
		default:
		}
	}
}

// holds tells whether the gate has closed since the request passed it.
func (t ticket) holds() bool {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	return t.gate.err != nil && t.gate.closed != t.closed
}

// leave records that a request says nothing of what the gate guards.
func (t ticket) leave() {
	if t.hangs != nil && t.hangs.Stop() {
		t.gate.admit(t.closed, 1)
	}
}

// succeed opens the gate.
func (t ticket) succeed() {
	t.stop()
	t.gate.open(t.closed)
}

func (t ticket) stop() {
	if t.hangs != nil {
		t.hangs.Stop()
	}
}

// open opens the gate if the pause is still that of closed.
func (g *gate) open(closed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && g.closed == closed {
		g.openLocked()
	}
}

// openLocked opens the gate. The caller holds mu.
func (g *gate) openLocked() {
	g.log(g.told, "Requests to the API server go on", "after", g.err, "waited", time.Since(g.since).Round(time.Millisecond))
	g.err, g.pause, g.told = nil, 0, false
	close(g.opened)
}

// fail closes the gate for its next pause, or for as long as the server asks, with jitter.
func (t ticket) fail(err error, retryAfter time.Duration) {
	t.stop()
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != t.closed {
		return
	}
	if g.err == nil {
		g.since, g.opened, g.probes = time.Now(), make(chan struct{}), make(chan struct{}, maxProbes)
		if g.told = time.Since(g.logged) > quietTime; g.told {
			g.logged = g.since
		}
		g.log(g.told, "Requests to the API server wait", "err", err)
	}
	for len(g.probes) > 0 {
		<-g.probes
	}
	g.err = err
	g.closed++
	g.pause = min(max(2*g.pause, firstPause), g.max)
	pause := g.pause/2 + rand.N(g.pause/2+1)
	if asked := min(retryAfter, maxRetryAfter); asked > pause {
		pause = asked + rand.N(asked/2)
	}
	closed := g.closed
	time.AfterFunc(pause, func() { g.admit(closed, 1) })
}

// renew opens the gate if it is closed for want of a credential: another one changes nothing of what a server asks for that
// has too much to do. Answers to requests that were sent before say nothing of the credential.
func (g *gate) renew() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.err == nil:
		g.closed++
	case apierrors.IsUnauthorized(g.err), errors.As(g.err, new(*CredentialError)):
		g.openLocked()
		g.closed++
	}
}

func (g *gate) state() (since time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.since, g.err
}

// log tells of a change, as a detail if the last one was a short time ago.
func (g *gate) log(tell bool, message string, keysAndValues ...any) {
	if g.name == "" {
		return
	}
	logger := klog.Background()
	if !tell {
		logger = logger.V(4)
	}
	logger.Info(message, append(keysAndValues, "for", g.name)...)
}
