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
	// firstPause is the first pause of a gate. Each further pause is twice as long, up to maxWayPause if the API server is unreachable, and
	// otherwise up to maxPause.
	firstPause  = 250 * time.Millisecond
	maxWayPause = 5 * time.Second
	maxPause    = 30 * time.Second
	// probeTime is how long the first probe may take before another request probes too. The following probes wait less and less.
	probeTime = time.Second
	// quietTime is how long after a gate has closed further changes are logged only as details.
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

// Reasons returns all reasons.
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

// gate stops the requests of one identity after a failure that concerns all of them. It closes for a pause, and then one request probes.
// Its success opens the gate, and otherwise the next pause is longer. A gate is safe for concurrent use, and has no goroutine.
type gate struct {
	// name is the identity for the log, or "" for a gate that never closes for others. It is constant.
	name string

	mu sync.Mutex
	// err says why the gate is closed, or is nil while it is open. since is when it closed.
	err   error
	since time.Time
	// epoch counts the pauses and the credentials. The result of a request of an earlier epoch is ignored.
	epoch int
	// next is when the next waiting request may probe. probes counts the probes since the last pause.
	next   time.Time
	pause  time.Duration
	probes int
	// changed is closed and replaced whenever waiting requests must look again.
	changed chan struct{}
	// usedAt is when the last request asked for the gate.
	usedAt time.Time
	// logOpening means that the opening is to be logged, and not only as a detail.
	logOpening bool
}

// use records that a request asks for the gate.
func (g *gate) use() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.usedAt = time.Now()
}

// isUnused reports whether the gate may be forgotten.
func (g *gate) isUnused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.usedAt) >= unusedTime
}

// enter waits until the gate is open, or the request may probe. The error is the cause of ctx.
func (g *gate) enter(ctx context.Context) (epoch int, err error) {
	for {
		epoch, wait, changed := g.delay()
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

// delay returns how long the request has to wait, or 0 if it may be sent.
func (g *gate) delay() (epoch int, wait time.Duration, changed <-chan struct{}) {
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

// hasClosedSince reports whether the gate has closed after the epoch of a request.
func (g *gate) hasClosedSince(epoch int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err != nil && g.epoch != epoch
}

// recordNoResult records that a request has no result that concerns the gate. Another request may probe.
func (g *gate) recordNoResult(epoch int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && g.epoch == epoch {
		g.next = time.Now()
		g.wakeLocked()
	}
}

// succeed opens the gate, unless the request belongs to an earlier epoch.
func (g *gate) succeed(epoch int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && g.epoch == epoch {
		g.openLocked()
	}
}

// fail closes the gate for its next pause, with jitter. It ignores a request of an earlier epoch.
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
		g.logOpening = time.Since(g.since) > quietTime
		g.since = time.Now()
		g.log("Requests to the API server wait", "err", err)
	}
	g.err, g.probes = err, 0
	g.epoch++
	g.pause = min(max(2*g.pause, firstPause), most)
	g.next = time.Now().Add(g.pause/2 + rand.N(g.pause/2+1))
	g.wakeLocked()
}

// renew opens the gate if it was closed because a credential was missing or not accepted. Answers to earlier requests are ignored from now
// on, because they don't concern the new credential.
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
	g.wakeLocked()
}

func (g *gate) wakeLocked() {
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

// log logs a change, as a detail if the gate also closed a short time before.
func (g *gate) log(message string, keysAndValues ...any) {
	if g.name == "" {
		return
	}
	logger := klog.Background()
	if !g.logOpening {
		logger = logger.V(4)
	}
	logger.Info(message, append(keysAndValues, "for", g.name)...)
}
