package writer

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A reader with a lease on a file delays nobody: the write fails at once and changes nothing, and the next one after the lease succeeds.
func TestInPlaceLease(t *testing.T) {
	v := newVolume(t)
	w := newInPlace(Options{})
	before, after := tree(file("a", "1"), file("b", "2")), tree(file("a", "one"), file("b", "two"))
	v.write(w, before)
	reader, err := v.root.Open("b")
	v.must(err)
	defer reader.Close()
	if _, err := unix.FcntlInt(reader.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Fatal("a lease: ", err)
	}
	if _, err := w.Write(t.Context(), v.root, after); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("with a lease: %v, want %v", err, unix.EWOULDBLOCK)
	}
	v.check(before)
	v.must(reader.Close())
	v.write(w, after)
	v.check(after)
}
