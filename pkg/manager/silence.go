package manager

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// silenceTime is how long a watch may bring neither an event nor a bookmark. API servers send
	// bookmarks about once a minute. As much again is added at random, so that watches that began
	// together don't end together. Each silent watch of an object doubles it for the next one, up to
	// maxSilence, for there are servers that send no bookmarks.
	silenceTime = 5 * time.Minute
	maxSilence  = minWatchTimeout
	// reopenInterval is the least time between the ends of two silent watches of a node: a little more
	// than a second, so that their requests stay under 60 a minute, or three times that where the server can't
	// begin a watch with the state. A watch that has to wait tries
	// again within reopenRetry.
	reopenInterval = 1100 * time.Millisecond
	reopenRetry    = 30 * time.Second
)

// errQuiet is why a silent watch ends.
var errQuiet = errors.New("the watch brought neither an event nor a bookmark")

// silence ends a watch that has brought nothing for its limit: the server, or a proxy on the way, may
// have lost it. Its timer ends with stop. mu guards what is below it.
type silence struct {
	limit   time.Duration
	reopens *pace
	end     context.CancelCauseFunc

	mu      sync.Mutex
	heard   time.Time
	timer   *time.Timer
	stopped bool
}

// newSilence begins to wait. earlier is how many watches of the object in a row were silent before.
func newSilence(earlier int, reopens *pace, end context.CancelCauseFunc) *silence {
	limit := silenceTime
	for range earlier {
		limit = min(2*limit, maxSilence)
	}
	s := &silence{limit: limit + rand.N(silenceTime), reopens: reopens, end: end, heard: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.limit, s.check)
	return s
}

// hear records that something came.
func (s *silence) hear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = time.Now()
}

// check ends the watch if it is silent and its turn has come.
func (s *silence) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if wait := s.limit - time.Since(s.heard); wait > 0 {
		s.timer.Reset(wait)
	} else if s.reopens.take() {
		s.end(errQuiet)
	} else {
		s.timer.Reset(rand.N(reopenRetry))
	}
}

func (s *silence) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
}

// pace allows one thing per reopenInterval. It is safe for concurrent use; the zero pace allows one now.
type pace struct {
	mu   sync.Mutex
	last time.Time
}

// take tells whether it is allowed now. If so, the next one has to wait.
func (p *pace) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) < reopenInterval {
		return false
	}
	p.last = now
	return true
}
