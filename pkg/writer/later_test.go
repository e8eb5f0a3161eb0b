package writer

import (
	"fmt"
	"slices"
	"testing"
)

// TestTheGenerationBeforeGoesAfterTheSwitch: what no reader needs any more must not hold up
// what readers wait for.
func TestTheGenerationBeforeGoesAfterTheSwitch(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	show := func(value string) {
		t.Helper()
		if _, err := w.Write(t.Context(), v.root, tree(file("a", value))); err != nil {
			t.Fatal(err)
		}
	}
	show("1")
	show("2")
	var calls []string
	w.fs = stepped{w.fs, func(op, name string) error {
		if op == "rename" || op == "unlink" && isGeneration(name) {
			calls = append(calls, op)
		}
		return nil
	}}
	show("3")
	if want := []string{"rename", "unlink"}; !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	if got := generationsOf(v); got != 2 || !w.Stale() {
		t.Errorf("%d generations, stale %t; want the present one and that before", got, w.Stale())
	}
}

// TestTheGenerationBeforeMakesRoom has a file system with room for two generations only.
func TestTheGenerationBeforeMakesRoom(t *testing.T) {
	v := newSmallVolume(t, 13, 20)
	w := New(Options{})
	for i := range 5 {
		want := tree(file("a", pages(5, fmt.Sprint(i))))
		if _, err := w.Write(t.Context(), v.root, want); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
		if got, want := v.shown(), dump(want); got != want {
			t.Fatalf("write %d: the volume shows another tree than the %d bytes that were to be written", i, len(want))
		}
		if got := generationsOf(v); got > 2 {
			t.Errorf("%d generations after write %d", got, i)
		}
	}
}

func generationsOf(v *testVolume) int {
	n := 0
	for _, name := range v.names() {
		if isGeneration(name) {
			n++
		}
	}
	return n
}
