package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestClaimsAreCounted(t *testing.T) {
	var out bytes.Buffer
	d := newDemo(&out, false)
	d.claim(nil, "%d holds", 1)
	d.claim(errors.New("it does not"), "%d fails", 2)
	if d.claims != 2 || d.failed != 1 {
		t.Errorf("%d claims, %d failed, want 2 and 1", d.claims, d.failed)
	}
	if want := "  ok    1 holds\n  FAIL  2 fails\n        it does not\n"; out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestFigures(t *testing.T) {
	var all []latency
	for _, n := range []int{5, 1, 4, 2, 3, 6} {
		all = append(all, latency{request: time.Duration(n) * time.Millisecond, answer: time.Duration(n) * time.Microsecond})
	}
	if got := median(all, latency.fromRequest); got != 3*time.Millisecond {
		t.Errorf("median = %s, want 3ms", got)
	}
	if got := slowest(all, latency.fromAnswer); got != 6*time.Microsecond {
		t.Errorf("slowest = %s, want 6µs", got)
	}
	if got := ms(1250 * time.Microsecond); got != "1.2 ms" {
		t.Errorf("ms = %q", got)
	}
}

func TestPauseEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want canceled", err)
	}
}

func TestBuildProgressIsIndented(t *testing.T) {
	var out bytes.Buffer
	n, err := indented{&out}.Write([]byte("building\n"))
	if n != len("building\n") || err != nil || !strings.HasPrefix(out.String(), "  building") {
		t.Errorf("wrote %q, %d, %v", out.String(), n, err)
	}
}
