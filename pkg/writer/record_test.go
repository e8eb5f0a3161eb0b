package writer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

func withRecord(record string, tree *volume.Tree) *volume.Tree {
	tree.Record = record
	return tree
}

// wantRecord compares what the next process finds.
func (v *testVolume) wantRecord(o Options, want string) {
	v.Helper()
	if got, err := ReadRecord(v.root, o.AttributePrefix); err != nil || got != want {
		v.Errorf("the record is %q, %v, want %q", got, err, want)
	}
}

// TestOnlyTheRecordChanges keeps the generation, and costs one call that changes anything.
func TestOnlyTheRecordChanges(t *testing.T) {
	o := withAttributes(t)
	for name, writer := range map[string]func() (treeWriter, *memory){
		"Writer":  func() (treeWriter, *memory) { w := New(o); return w, &w.memory },
		"InPlace": func() (treeWriter, *memory) { w := NewInPlace(o); return w, &w.memory },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			w, memory := writer()
			first := v.write(w, withRecord("1", tree(file("a", "1"))))
			for _, record := range []string{"2", "3", "", "4"} {
				if record == "3" { // a new process reads what there is
					w, memory = writer()
				}
				var calls []string
				memory.fs = stepped{memory.fs, func(op, name string) error {
					calls = append(calls, op+" "+name)
					return nil
				}}
				result, err := w.Write(t.Context(), v.root, withRecord(record, tree(file("a", "1"))))
				if err != nil || result != (Result{Generation: first.Generation}) {
					t.Errorf("Write = %+v, %v", result, err)
				}
				if want := []string{"setAttribute " + record}; !slices.Equal(calls, want) {
					t.Errorf("calls %q, want %q", calls, want)
				}
				v.wantRecord(o, record)
			}
			memory.fs = stepped{memory.fs, func(op, name string) error {
				t.Errorf("%s %s", op, name)
				return nil
			}}
			v.must(second(w.Write(t.Context(), v.root, withRecord("4", tree(file("a", "1"))))))
		})
	}
}

// TestWithdrawKeepsTheRecord has what is left protected from going back.
func TestWithdrawKeepsTheRecord(t *testing.T) {
	o := withAttributes(t)
	for _, w := range []treeWriter{New(o), NewInPlace(o)} { // of a process that starts
		v := newVolume(t)
		v.must(second(New(o).Write(t.Context(), v.root, withRecord("1", mixed()))))
		if result, err := w.Withdraw(t.Context(), v.root, refSet("db"), false); err != nil || !result.Changed {
			t.Errorf("Withdraw = %+v, %v", result, err)
		}
		v.wantRecord(o, "1")
	}
}

// TestHostileRecord takes a record that can't be one for none, and writes the next one over it.
func TestHostileRecord(t *testing.T) {
	o := withAttributes(t)
	for _, record := range []string{"\x00", strings.Repeat("x", MaxRecord+1)} {
		v := newVolume(t)
		v.must(second(New(o).Write(t.Context(), v.root, withRecord("1", tree(file("a", "1"))))))
		generation := filepath.Join(v.path, v.readlink(dataName))
		if err := unix.Setxattr(generation, o.AttributePrefix+"record", []byte(record), 0); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) {
			t.Skip("the file system does not take it")
		}
		want := record
		if len(record) > MaxRecord {
			want = ""
		}
		v.wantRecord(o, want)
		v.must(second(New(o).Write(t.Context(), v.root, withRecord("2", tree(file("a", "1"))))))
		v.wantRecord(o, "2")
	}
}

// TestNoRecord reads volumes that have none.
func TestNoRecord(t *testing.T) {
	o := withAttributes(t)
	v := newVolume(t)
	v.wantRecord(o, "")
	v.must(second(New(Options{}).Write(t.Context(), v.root, tree(file("a", "1")))))
	v.wantRecord(o, "")
	v.wantRecord(Options{}, "")
	v.must(os.Symlink("elsewhere", filepath.Join(v.path, "x")))
	v.must(os.Rename(filepath.Join(v.path, "x"), filepath.Join(v.path, dataName)))
	v.wantRecord(o, "")
	if _, err := New(Options{}).Write(t.Context(), v.root, withRecord("1", tree(file("a", "1")))); !errors.Is(err, errNoAttribute) {
		t.Errorf("a writer without attributes: %v", err)
	}
}

// TestRecordOfNoGeneration has a link that leads nowhere show nothing, as a Write takes it.
func TestRecordOfNoGeneration(t *testing.T) {
	o := withAttributes(t)
	v := newVolume(t)
	v.must(second(New(o).Write(t.Context(), v.root, withRecord("1", tree(file("a", "1"))))))
	v.must(os.RemoveAll(filepath.Join(v.path, v.readlink(dataName))))
	v.wantRecord(o, "")
	v.must(second(New(o).Write(t.Context(), v.root, withRecord("2", tree(file("a", "1"))))))
	v.wantRecord(o, "2")
}
