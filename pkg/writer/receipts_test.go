package writer

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// receipts returns the receipts of a generation. "" means the present one.
func (v *testVolume) receipts(o Options, generation string) map[string]Receipt {
	v.Helper()
	g, err := OpenGeneration(v.root, o, generation)
	v.must(err)
	defer g.Close()
	all := map[string]Receipt{}
	v.must(g.Receipts(func(r Receipt, _ int) error { all[r.Path] = r; return nil }))
	return all
}

// opened returns which files of the present generation have receipts.
func (v *testVolume) opened(o Options) []string {
	v.Helper()
	all := v.receipts(o, "")
	maps.DeleteFunc(all, func(_ string, r Receipt) bool { return r.Opened.IsZero() })
	return slices.Sorted(maps.Keys(all))
}

func (v *testVolume) setReceipt(o Options, path string, at time.Time) {
	v.Helper()
	g, err := OpenGeneration(v.root, o, "")
	v.must(err)
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

// TestReceipts: a link keeps a file's receipt in the next generation, and a file with new content has none.
func TestReceipts(t *testing.T) {
	o := withAttributes(t)
	v, w := newVolume(t), New(o)
	before := time.Now().Add(-time.Second)
	v.must(second(w.Write(t.Context(), v.root, namedTree("1", "1", "1"))))
	all := v.receipts(o, "")
	if len(all) != 3 || !slices.Equal(all["conf/b"].Refs, refs("b")) ||
		all["a"].Written.Before(before) || time.Since(all["a"].Written) < 0 {
		t.Errorf("%+v", all)
	}
	first := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	v.setReceipt(o, "a", first)
	v.setReceipt(o, "a", first.Add(time.Hour)) // the first one counts
	v.setReceipt(o, "conf/b", first)
	v.must(second(w.Write(t.Context(), v.root, namedTree("1", "2", "1"))))
	if got := v.opened(o); !slices.Equal(got, []string{"a"}) || !v.receipts(o, "")["a"].Opened.Equal(first) {
		t.Errorf("opened: %q, %+v", got, v.receipts(o, ""))
	}
	v.must(second(w.Withdraw(t.Context(), v.root, refSet("b"), "")))
	if got := v.opened(o); !slices.Equal(got, []string{"a"}) {
		t.Errorf("after a withdrawal: %q", got)
	}
}

// TestWithFile: a file of a generation can be read by its path, and one that isn't there is an error.
func TestWithFile(t *testing.T) {
	v := newVolume(t)
	v.write(New(Options{}), namedTree("1", "2"))
	g, err := OpenGeneration(v.root, Options{}, "")
	v.must(err)
	defer g.Close()
	read := ""
	v.must(g.WithFile("conf/b", func(file int) error {
		buf := make([]byte, 10)
		n, err := unix.Pread(file, buf, 0)
		read = string(buf[:max(n, 0)])
		return err
	}))
	if read != "2" {
		t.Errorf("read %q", read)
	}
	failure := errors.New("failed")
	for path, want := range map[string]error{"a": failure, "gone": unix.ENOENT} {
		if err := g.WithFile(path, func(int) error { return failure }); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
}

// TestReceiptsInPlace: a file that is rewritten or emptied loses its receipt, and no other file does.
func TestReceiptsInPlace(t *testing.T) {
	o := withAttributes(t)
	o.InPlace = true
	v, w := newVolume(t), New(o)
	v.must(second(w.Write(t.Context(), v.root, namedTree("1", "1", "1"))))
	for _, path := range []string{"a", "conf/b", "conf/c"} {
		v.setReceipt(o, path, time.Now())
	}
	v.must(second(w.Write(t.Context(), v.root, namedTree("1", "2"))))
	if got := v.opened(o); !slices.Equal(got, []string{"a"}) {
		t.Errorf("opened: %q", got)
	}
}

// TestRemoving: the function is called for each file of a superseded generation that has no other link, before it is removed.
func TestRemoving(t *testing.T) {
	o := withAttributes(t)
	v := newVolume(t)
	var removed []string
	o.Removing = func(file int) {
		buf := make([]byte, 8)
		n, err := unix.Pread(file, buf, 0)
		v.must(err)
		removed = append(removed, string(buf[:n]))
	}
	w := New(o)
	for _, content := range []string{"1", "2"} {
		v.must(second(w.Write(t.Context(), v.root, namedTree("record", content, "both"))))
	}
	_, err := Prune(v.root, nil, o.Removing)
	v.must(err)
	if !slices.Equal(removed, []string{"1"}) {
		t.Errorf("heard of %q", removed)
	}
	removed = nil
	v.must(second(w.Withdraw(t.Context(), v.root, refSet("b"), "")))
	if !slices.Equal(removed, []string{"2"}) {
		t.Errorf("of a withdrawal, heard of %q", removed)
	}
}
