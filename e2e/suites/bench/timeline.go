package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"
)

// timeline is when each of a row of numbered states was seen. It is safe for concurrent
// use; mu guards the fields below it.
type timeline struct {
	mu sync.Mutex
	// at has the first moment at which a state was seen, or a later one; skipped are those
	// that only a later one stood for.
	at      []time.Time
	seen    []bool
	highest int
}

func newTimeline(states int) *timeline {
	return &timeline{at: make([]time.Time, states), seen: make([]bool, states), highest: -1}
}

// state and number are how a state's number stands in an object.
func state(number int) string { return strconv.Itoa(number) }

// see notes that a state is seen. What is no number of a state, such as the one from before
// the first, is ignored.
func (t *timeline) see(value string, at time.Time) {
	number, err := strconv.Atoi(value)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || number < 0 || number >= len(t.at) {
		return
	}
	t.seen[number] = true
	for ; t.highest < number; t.highest++ {
		t.at[t.highest+1] = at
	}
}

// complete returns nil once the last state was seen.
func (t *timeline) complete() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.highest+1 < len(t.at) {
		return fmt.Errorf("state %d of %d is the last that was seen", t.highest+1, len(t.at))
	}
	return nil
}

// lost is how many states were never seen, nor a later one in their place; merged is how
// many a later one stood for.
func (t *timeline) lost() (lost, merged int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for number := range t.at {
		switch {
		case number > t.highest:
			lost++
		case !t.seen[number]:
			merged++
		}
	}
	return lost, merged
}

// after returns, for each state, how long after the moment in from it was seen here.
func (t *timeline) after(from []time.Time) []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]time.Duration, 0, len(from))
	for number := range min(len(from), t.highest+1) {
		out = append(out, t.at[number].Sub(from[number]))
	}
	return out
}

// moments returns when each state was seen.
func (t *timeline) moments() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]time.Time(nil), t.at[:t.highest+1]...)
}
