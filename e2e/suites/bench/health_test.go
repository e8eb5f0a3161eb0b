package main

import (
	"errors"
	"testing"
	"time"
)

// TestHealth has an API server that starts, is ready two seconds later, and is not for a moment after
// that. Before it was another process, which had more requests.
func TestHealth(t *testing.T) {
	began := time.Now()
	after := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	away := errors.New("not ready")
	o := &observer{
		probes: []probe{
			{after(-1), 9 * time.Second, nil},
			{after(1), 9 * time.Second, away},
			{after(2), time.Second, nil},
			{after(3), 2 * time.Second, away},
			{after(5), time.Second, nil},
		},
		counts: []count{{after(-5), 1000}, {after(-1), 9000}, {after(2), 100}, {after(4), 700}, {after(5), 900}},
	}
	if got, want := o.health(began, after(2)), (health{busiest: 300, unready: 1, slowest: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	o.counts = o.counts[:2]
	if got, want := o.health(time.Time{}, after(9)), (health{busiest: 2000}); got != want {
		t.Errorf("of one process: %+v, want %+v", got, want)
	}
}
