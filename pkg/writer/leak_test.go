package writer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/leak"
)

// TestErrorsHideContent lets each call of an update fail in turn: neither the error nor
// what the writer is holds any of the files.
func TestErrorsHideContent(t *testing.T) {
	for n := 1; ; n++ {
		atomic, inPlace := New(Options{}), NewInPlace(Options{})
		ended := updateFails(t, atomic, &atomic.memory, n)
		ended = updateFails(t, inPlace, &inPlace.memory, n) && ended
		if ended {
			return
		}
	}
}

// updateFails makes an update of which the nth call fails, and tells that it had fewer.
func updateFails(t *testing.T, w treeWriter, m *memory, n int) (ended bool) {
	t.Helper()
	v, calls := newVolume(t), 0
	if _, err := w.Write(t.Context(), v.root, tree(file("d/key", leak.Value), file("x", leak.Value))); err != nil {
		t.Fatal(err)
	}
	m.fs = stepped{m.fs, func(string, string) error {
		if calls++; calls == n {
			return unix.EIO
		}
		return nil
	}}
	after := tree(withMode(0o600, file("d/key", strings.Repeat(leak.Value, 1000))), file("new/d", leak.Value))
	result, err := w.Write(t.Context(), v.root, after)
	if leaked := leak.Check("what the writer shows", fmt.Sprintf("%+v %#v %v %+v %+v", err, err, result, w, after)); leaked != nil {
		t.Errorf("%T, call %d: %v", w, n, leaked)
	}
	if err != nil && !errors.Is(err, unix.EIO) {
		t.Errorf("%T, call %d: %v", w, n, err)
	}
	return calls < n
}
