package writer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func withRecord(record string, tree *volume.Payload) *volume.Payload {
	tree.Record = record
	return tree
}

func (v *testVolume) wantRecord(o Options, want string) {
	v.Helper()
	expect.Equal(v, "the record", must.Get(Record(v.root, o.AttributePrefix))(v), want)
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
			result := must.Get(w.Write(t.Context(), v.root, withRecord(record, tree(file("a", "1")))))(t)
			expect.Equal(t, "the result", result, Result{Generation: first.Generation})
			v.wantRecord(o, record)
		}
		expect.Equal(t, "the status of the file", v.inode("a"), before)
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
	generation := must.Get(openPresent(v.root))(v)
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
			record := must.Get(Record(v.root, o.AttributePrefix))(v)
			if !strings.HasPrefix(record, "2") || IsTorn(record) != test.torn {
				t.Errorf("the record is %q, want one that is torn: %t", record, test.torn)
			}
		})
	}
}

func (v *testVolume) receipts(o Options, generation string) map[string]Receipt {
	v.Helper()
	g := must.Get(OpenGeneration(v.root, o, generation))(v)
	defer g.Close()
	all := map[string]Receipt{}
	v.must(g.Receipts(func(r Receipt, _ int) error { all[r.Path] = r; return nil }))
	return all
}

func (v *testVolume) opened(o Options) []string {
	v.Helper()
	all := v.receipts(o, "")
	maps.DeleteFunc(all, func(_ string, r Receipt) bool { return r.Opened.IsZero() })
	return slices.Sorted(maps.Keys(all))
}

func (v *testVolume) setReceipt(o Options, path string, at time.Time) {
	v.Helper()
	g := must.Get(OpenGeneration(v.root, o, ""))(v)
	defer g.Close()
	v.must(g.SetReceipt(path, at, func(int) error { return nil }))
}

func namedTree(contents ...string) *volume.Payload {
	t := &volume.Payload{DirMode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner, Record: contents[0]}
	for i, path := range []string{"a", "conf/b", "conf/c"}[:len(contents)] {
		t.Files = append(t.Files, volume.File{Path: path, Data: []byte(contents[i]), Mode: 0o444, Refs: refs(path[len(path)-1:])})
	}
	return t
}

// TestReceipts: a file that stays keeps its receipt, in the next generation by its link, and a file that is rewritten or emptied loses it.
func TestReceipts(t *testing.T) {
	o := withAttributes(t)
	for _, o.InPlace = range []bool{false, true} {
		v, w := newVolume(t), New(o)
		before := time.Now().Add(-time.Second)
		v.must(second(w.Write(t.Context(), v.root, namedTree("1", "1", "1"))))
		all := v.receipts(o, "")
		if len(all) != 3 || !slices.Equal(all["conf/b"].Refs, refs("b")) ||
			all["a"].Written.Before(before) || time.Since(all["a"].Written) < 0 {
			t.Errorf("%+v", all)
		}
		first := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
		for _, path := range []string{"a", "conf/b", "conf/c"} {
			v.setReceipt(o, path, first)
		}
		v.setReceipt(o, "a", first.Add(time.Hour)) // the first one counts
		v.must(second(w.Write(t.Context(), v.root, namedTree("1", "2"))))
		if got := v.opened(o); !slices.Equal(got, []string{"a"}) || !v.receipts(o, "")["a"].Opened.Equal(first) {
			t.Errorf("in place %t, opened: %q, %+v", o.InPlace, got, v.receipts(o, ""))
		}
		v.must(second(w.Withdraw(t.Context(), v.root, refSet("b"), "")))
		expect.Equal(t, fmt.Sprintf("in place %t, opened after a withdrawal", o.InPlace), v.opened(o), []string{"a"})
	}
}

// TestReceiptsGoFirst: at no moment of a rewrite in place does a file have new content and a receipt. A process that is killed then would leave both.
func TestReceiptsGoFirst(t *testing.T) {
	o := withAttributes(t)
	o.InPlace = true
	v, moments := newVolume(t), 0
	v.must(second(New(o).Write(t.Context(), v.root, namedTree("1", "1", "1"))))
	for _, path := range []string{"a", "conf/b", "conf/c"} {
		v.setReceipt(o, path, time.Now())
	}
	watched := o
	watched.Step = func(change string) {
		moments++
		for _, path := range v.opened(o) {
			if text := must.Get(os.ReadFile(filepath.Join(v.path, dataName, path)))(v); string(text) != "1" {
				t.Errorf("before the step %q, %s has %q and a receipt", change, path, text)
			}
		}
	}
	v.must(second(New(watched).Write(t.Context(), v.root, namedTree("22", "22")))) // conf/c is emptied
	expect.Between(t, "steps", moments, 5, 10)
	expect.Equal(t, "opened at the end", v.opened(o), nil)
}

// TestTheObjectsOfAFileThatIsRewritten: at each moment of a rewrite in place, the file names the object of what it shows. A process that is
// killed then leaves nothing that a withdrawal doesn't find.
func TestTheObjectsOfAFileThatIsRewritten(t *testing.T) {
	o := withAttributes(t)
	o.InPlace = true
	v, moments := newVolume(t), 0
	v.must(second(New(o).Write(t.Context(), v.root, tree(naming(file("a", "1"), "db")))))
	watched := o
	watched.Step = func(change string) {
		moments++
		text := string(must.Get(os.ReadFile(filepath.Join(v.path, dataName, "a")))(v))
		want, isKnown := map[string][]volume.Ref{"1": refs("db"), "22": refs("other")}[text]
		if r := v.receipts(o, "")["a"]; !isKnown || !r.Any && !slices.Equal(r.Refs, want) {
			t.Errorf("before the step %q, the file has %q and names %v", change, text, r.Refs)
		}
	}
	v.must(second(New(watched).Write(t.Context(), v.root, tree(naming(file("a", "22"), "other")))))
	expect.Between(t, "steps", moments, 2, 5)
}

// TestWithFile: a file of a generation can be read by its path, and one that isn't there is an error.
func TestWithFile(t *testing.T) {
	v := newVolume(t)
	v.write(New(Options{}), namedTree("1", "2"))
	g := must.Get(OpenGeneration(v.root, Options{}, ""))(t)
	defer g.Close()
	read := ""
	v.must(g.WithFile("conf/b", func(file int) error {
		buf := make([]byte, 10)
		n, err := unix.Pread(file, buf, 0)
		read = string(buf[:max(n, 0)])
		return err
	}))
	expect.Equal(t, "what is read", read, "2")
	failure := errors.New("failed")
	for path, want := range map[string]error{"a": failure, "gone": unix.ENOENT} {
		expect.Is(t, path, g.WithFile(path, func(int) error { return failure }), want)
	}
}

// TestRemoving: the function is called for each file of a superseded generation that has no other link, before it is removed.
func TestRemoving(t *testing.T) {
	o := withAttributes(t)
	v := newVolume(t)
	var removed []string
	o.Removing = func(file int) {
		buf := make([]byte, 8)
		n := must.Get(unix.Pread(file, buf, 0))(v)
		removed = append(removed, string(buf[:n]))
	}
	w := New(o)
	for _, content := range []string{"1", "2"} {
		v.must(second(w.Write(t.Context(), v.root, namedTree("record", content, "both"))))
	}
	must.Get(Prune(v.root, nil, o.Removing))(t)
	expect.Equal(t, "what is removed", removed, []string{"1"})
	removed = nil
	v.must(second(w.Withdraw(t.Context(), v.root, refSet("b"), "")))
	expect.Equal(t, "what a withdrawal removes", removed, []string{"2"})
}
