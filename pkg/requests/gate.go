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
	// firstPause is how long a gate closes at first. Each next pause is twice as long, up to maxWayPause if the API server
	// can't be reached, else up to maxPause.
	firstPause  = 250 * time.Millisecond
	maxWayPause = 5 * time.Second
	maxPause    = 30 * time.Second
	// probeTime is how long a probe may have no answer before another request probes too. The next follow sooner each.
	probeTime = time.Second
	// quietTime is how long after a gate has closed the log has the next times as details.
	quietTime = time.Minute
)

// Reason says why requests wait.
type Reason string

// The reasons.
const (
	Unreachable  Reason = "unreachable"
	NoCredential Reason = "no-credential" //nolint:gosec // it is none
	Unauthorized Reason = "unauthorized"
	Unavailable  Reason = "unavailable"
)

// Reasons returns every Reason.
func Reasons() []Reason { return []Reason{Unreachable, NoCredential, Unauthorized, Unavailable} }

func reasonOf(err error) Reason {
	switch {
	case errors.As(err, new(*CredentialError)):
		return NoCredential
	case apierrors.IsUnauthorized(err):
		return Unauthorized
	case apierrors.IsServiceUnavailable(err):
		return Unavailable
	}
	return Unreachable
}

// gate holds up the requests of one identity after a failure that concerns them all. It closes for a pause, then one request
// probes, and its success opens the gate. The pauses grow until then. It is safe for concurrent use, and has timers only.
type gate struct {
	// name is for the log, "" for a gate at which nobody waits; constant.
	name string

	mu sync.Mutex
	// err is why the gate is closed, nil while it is open, and since is when it closed first.
	err   error
	since time.Time
	// epoch counts the pauses and the credentials: the outcome of a request of an earlier epoch says nothing new.
	epoch int
	// next is when the next of those who wait may probe, and probes counts those of this pause.
	next   time.Time
	pause  time.Duration
	probes int
	// changed is closed, and made anew, at each change of what those who wait look at.
	changed chan struct{}
	// told says that the log is to be told of the end.
	told bool
}

// enter waits until the gate is open, or the request is a probe. The error is the cause of ctx.
func (g *gate) enter(ctx context.Context) (epoch int, err error) {
	for {
		epoch, wait, changed := g.look()
		if wait <= 0 {
			return epoch, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// look returns how long the request has to wait; 0 if it may be sent.
func (g *gate) look() (epoch int, wait time.Duration, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return g.epoch, 0, nil
	}
	if wait = time.Until(g.next); wait <= 0 {
		g.next = time.Now().Add(probeTime >> min(g.probes, 4)) // this probe may be for an object that gets no answer
		g.probes++
	}
	return g.epoch, wait, g.changed
}

// holds tells whether the gate has closed since the epoch of a request.
func (g *gate) holds(epoch int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err != nil && g.epoch != epoch
}

// leave records that a request says nothing of what the gate guards: another one may probe.
func (g *gate) leave(epoch int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && g.epoch == epoch {
		g.next = time.Now()
		g.changeLocked()
	}
}

// succeed opens the gate, unless the request is of an earlier epoch.
func (g *gate) succeed(epoch int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && g.epoch == epoch {
		g.openLocked()
	}
}

// fail closes the gate for its next pause, with jitter.
func (g *gate) fail(epoch int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epoch != epoch {
		return
	}
	reason, most := reasonOf(err), maxPause
	if reason == Unreachable {
		most = maxWayPause
	}
	if g.err == nil {
		g.told = time.Since(g.since) > quietTime
		g.since = time.Now()
		g.log("Requests to the API server wait", "err", err)
	}
	g.err, g.probes = err, 0
	g.epoch++
	g.pause = min(max(2*g.pause, firstPause), most)
	g.next = time.Now().Add(g.pause/2 + rand.N(g.pause/2+1))
	g.changeLocked()
}

// renew opens the gate if it is closed for want of a credential. Answers to requests that were sent before say nothing of the
// new one.
func (g *gate) renew() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		if reason := reasonOf(g.err); reason != NoCredential && reason != Unauthorized {
			return
		}
		g.openLocked()
	}
	g.epoch++
}

// openLocked opens the gate. The caller holds mu.
func (g *gate) openLocked() {
	g.log("Requests to the API server go on", "after", g.err, "waited", time.Since(g.since).Round(time.Millisecond))
	g.err, g.pause = nil, 0
	g.changeLocked()
}

func (g *gate) changeLocked() {
	if g.changed != nil {
		close(g.changed)
	}
	g.changed = make(chan struct{})
}

func (g *gate) state() (since time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.since, g.err
}

// log tells of a change, as a detail if the gate closed a short time before too.
func (g *gate) log(message string, keysAndValues ...any) {
	if g.name == "" {
		return
	}
	logger := klog.Background()
	if !g.told {
		logger = logger.V(4)
	}
	logger.Info(message, append(keysAndValues, "for", g.name)...)
}
