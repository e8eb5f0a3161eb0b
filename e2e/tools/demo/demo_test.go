package main

import (
	"bytes"
	"errors"
	"testing"
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
