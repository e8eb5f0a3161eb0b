package writer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

func withRecord(record string, tree *volume.Payload) *volume.Payload {
	tree.Record = record
	return tree
}

// wantRecord compares what the next process finds.
func (v *testVolume) wantRecord(o Options, want string) {
	v.Helper()
	if got, err := Record(v.root, o.AttributePrefix); err != nil || got != want {
		v.Errorf("the record is %q, %v, want %q", got, err, want)
	}
}

// TestOnlyTheRecordChanges: the generation and its files stay.
func TestOnlyTheRecordChanges(t *testing.T) {
	o := withAttributes(t)
	for _, inPlace := range []bool{false, true} {
		o.InPlace = inPlace
		v, w := newVolume(t), New(o)
		first := v.write(w, tree(file("a", "1")))
		before := v.inode("a")
		for _, record := range []string{"1", "2", "3", "", "4", "4"} {
			if record == "3" { // a new process reads what exists
				w = New(o)
			}
			result, err := w.Write(t.Context(), v.root, withRecord(record, tree(file("a", "1"))))
			if err != nil || result != (Result{Generation: first.Generation}) {
				t.Errorf("Write = %+v, %v", result, err)
			}
			v.wantRecord(o, record)
		}
		if v.inode("a") != before {
			t.Error("the file was touched")
		}
	}
}

// TestLongestRecord can be read, and a longer one counts as none.
func TestLongestRecord(t *testing.T) {
	o := withLargeAttributes(t)
	v, w := newVolume(t), New(o)
	longest := strings.Repeat("r", MaxRecord)
	v.write(w, withRecord(longest, tree(file("a", "1"))))
	v.wantRecord(o, longest)
	v.write(w, withRecord(longest+"r", tree(file("a", "1"))))
	v.wantRecord(o, "")
}

// TestHostileRecord: an invalid record counts as none, and the next one replaces it.
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

// TestTornStaysTorn: torn files that a Withdraw keeps stay torn until a Write has checked all of them. A record from before the mark never
// says that files are torn.
func TestTornStaysTorn(t *testing.T) {
	o := withAttributes(t)
	o.InPlace = true
	v := newVolume(t)
	all := withRecord("1", tree(naming(file("a", "1"), "db"), naming(file("b", "1"), "ca")))
	v.write(New(o), all)
	v.wantRecord(o, "1")
	generation, err := openPresent(v.root)
	v.must(err)
	defer unix.Close(generation)
	v.must(o.setAttribute(generation, recordName, "1"+tornMark))
	v.must(second(New(o).Withdraw(t.Context(), v.root, refSet("db"), "2")))
	v.wantRecord(o, "2"+tornMark)
	v.write(New(o), all)
	v.wantRecord(o, "1")
	if IsTorn("1") || IsTorn("") || !IsTorn("1"+tornMark) {
		t.Error("IsTorn")
	}
}

// TestARewriteThatFailsIsTorn: the record says that files are torn once one was to be changed or emptied. If none is, the record is written
// once, and never says so.
func TestARewriteThatFailsIsTorn(t *testing.T) {
	o := withAttributes(t)
	o.InPlace = true
	for name, test := range map[string]struct {
		after *volume.Payload
		fails fault
		torn  bool
	}{
		"a file changes":    {tree(file("a", "2"), file("b", "1")), fault{what: "error=EIO", call: "write", when: 1}, true},
		"a file is emptied": {tree(file("a", "1")), fault{what: "error=EIO", call: "ftruncate", when: 1}, true},
		"only the record":   {tree(file("a", "1"), file("b", "1")), fault{what: "error=EIO", call: "fsetxattr", when: 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			v.write(New(o), withRecord("1", tree(file("a", "1"), file("b", "1"))))
			out, hit := test.fails.run(t, job{Volume: v.path, Options: o, Tree: *withRecord("2", test.after)})
			if hit != test.torn {
				t.Fatalf("hit %t: %s", hit, out)
			}
			record, err := Record(v.root, o.AttributePrefix)
			v.must(err)
			if !strings.HasPrefix(record, "2") || IsTorn(record) != test.torn {
				t.Errorf("the record is %q, want one that is torn: %t", record, test.torn)
			}
		})
	}
}
