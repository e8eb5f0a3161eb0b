package writer

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// passing is a context whose deadline a test lets pass.
type passing struct {
	context.Context
	passed bool
}

func (c *passing) Deadline() (time.Time, bool) { return time.Time{}, true }

func (c *passing) Err() error {
	if c.passed {
		return context.DeadlineExceeded
	}
	return nil
}

// Once the deadline has passed, at any call, no call follows that may hang: what was begun stays for the next
// Write, and the files are those of one tree.
func TestDeadlineAtAnyCall(t *testing.T) {
	before := tree(file("a", "1"), file("b", "2"), file("dir/c", "3"), file("kept/d", "4"))
	after := tree(file("a", "one"), file("b", "2"), file("dir/c", "three"), file("kept/d", "4"), file("new/d", "5"), file("z", "6"))
	ofAnother := *after
	if os.Getuid() == 0 {
		ofAnother.UID = 1
	}
	for name, newWriter := range map[string]func(Options) treeWriter{
		"Atomic":  func(o Options) treeWriter { return New(o) },
		"InPlace": func(o Options) treeWriter { return NewInPlace(o) },
	} {
		for owner, after := range map[string]*volume.Tree{"same": after, "other": &ofAnother} {
			t.Run(name+" "+owner, func(t *testing.T) {
				n := 0
				for deadlineAt(t, newWriter, n, recorded(before), recorded(after)) {
					n++
				}
				if n < 10 {
					t.Errorf("only %d calls", n)
				}
			})
		}
	}
}

// deadlineAt has the deadline pass during call n of a write, and returns whether there was such a call.
func deadlineAt(t *testing.T, newWriter func(Options) treeWriter, n int, before, after *volume.Tree) bool {
	t.Helper()
	v := newVolume(t)
	w := newWriter(withAttributes(t))
	v.write(w, before)
	ctx, calls := &passing{Context: t.Context()}, 0
	stepInto(w, func(op, name string) error {
		mayHang := op != "write" && op != "truncate" && op != "allocate" && op != "statfs"
		if ctx.passed && mayHang {
			t.Errorf("%s %s after call %d, in which the deadline passed", op, name, n)
		}
		ctx.passed = ctx.passed || calls == n
		calls++
		return nil
	})
	_, err := w.Write(ctx, v.root, after)
	reached := ctx.passed
	if err != nil && (!errors.Is(err, context.DeadlineExceeded) || !w.Stale()) {
		t.Errorf("the deadline passed in call %d: %v, and stale is %t", n, err, w.Stale())
	}
	if w.Stale() && reached {
		if err := w.Prune(ctx, v.root, time.Now()); !errors.Is(err, context.DeadlineExceeded) && twoGenerations(v) {
			t.Errorf("a prune after the deadline: %v", err)
		}
	}
	if _, atomic := w.(*Writer); atomic {
		checkEither(v, before, after)
	}
	stepInto(w, func(string, string) error { return nil })
	v.write(w, after)
	return reached
}

// twoGenerations says whether there is a generation beside the one that is shown.
func twoGenerations(v *testVolume) bool {
	v.Helper()
	entries, err := os.ReadDir(v.root.Name())
	v.must(err)
	n := 0
	for _, e := range entries {
		if isGeneration(e.Name()) {
			n++
		}
	}
	return n > 1
}

// stepInto calls step before each operation of w.
func stepInto(w treeWriter, step func(op, name string) error) {
	switch w := w.(type) {
	case *Writer:
		w.fs = stepped{linux{}, step}
	case *InPlace:
		w.fs = stepped{linux{}, step}
	}
}
