package writer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// TestKeptGenerationsAreBounded switches more often than generations are kept: the oldest go.
func TestKeptGenerationsAreBounded(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	var names []string
	for i := range 3 * maxKept {
		result, err := w.Write(t.Context(), v.root, tree(file("a", fmt.Sprint(i)), file("same", "x")))
		v.must(err)
		names = append(names, result.Generation)
		if got, want := v.generations(), names[max(0, len(names)-maxKept-1):]; !sameNames(got, slices.Clone(want)...) {
			t.Fatalf("write %d: generations %q, want %q", i, got, want)
		}
	}
	for n := maxKept; n > 0; n-- {
		if dropped, err := w.DropOldest(t.Context(), v.root); !dropped || err != nil {
			t.Fatalf("DropOldest = %v, %v", dropped, err)
		}
		if got, want := v.generations(), names[len(names)-n:]; !sameNames(got, slices.Clone(want)...) {
			t.Fatalf("generations %q, want %q", got, want)
		}
	}
	if dropped, err := w.DropOldest(t.Context(), v.root); dropped || err != nil || w.Stale() {
		t.Errorf("with nothing left, DropOldest = %v, %v, stale: %v", dropped, err, w.Stale())
	}
}

// TestKeptGenerationsMakeRoom has a file system for two generations: no update fails because of
// what is kept, and something is kept nearly always.
func TestKeptGenerationsMakeRoom(t *testing.T) {
	for name, content := range map[string]func(i int) *volume.Tree{
		"bytes": func(i int) *volume.Tree { return tree(file("a", pages(3, fmt.Sprint(i%10))), file("same", "x")) },
		"inodes": func(i int) *volume.Tree {
			return tree(file("a", fmt.Sprint(i)), file(fmt.Sprintf("d/%d", i), ""), file("same", "x"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			size := Measure(content(0))
			v := newSmallVolume(t, int(2*size.Bytes)/os.Getpagesize(), int(2*size.Inodes)+2)
			w := New(Options{})
			for i := range 50 {
				if i == 25 {
					w = New(Options{})
				}
				if _, err := w.Write(t.Context(), v.root, content(i)); err != nil {
					t.Fatalf("write %d: %v", i, err)
				}
				if i > 0 && len(v.generations()) < 2 {
					t.Errorf("write %d left nothing for the readers of the generation before", i)
				}
			}
			v.prune(w)
			v.check(content(49))
		})
	}
}

// TestWithdrawalRemovesEarlierGenerations: each of them may show what is refused, also where the present one
// does so no longer.
func TestWithdrawalRemovesEarlierGenerations(t *testing.T) {
	o := withAttributes(t)
	for _, restart := range []bool{false, true} {
		for _, shown := range []bool{true, false} {
			t.Run(fmt.Sprintf("restart=%v/shown=%v", restart, shown), func(t *testing.T) {
				v, w := newVolume(t), New(o)
				for i := range 4 {
					v.must(second(w.Write(t.Context(), v.root, tree(file("own", "1"), naming(file("db", fmt.Sprint("secret", i)), "db")))))
				}
				if !shown {
					v.must(second(w.Write(t.Context(), v.root, tree(file("own", "1")))))
				}
				base := v.readlink(dataName)
				if restart {
					w = New(o)
				}
				result, err := w.Withdraw(t.Context(), v.root, refSet("db"), false)
				if err != nil || result.Changed != shown {
					t.Errorf("Withdraw = %+v, %v", result, err)
				}
				want := []string{base}
				if shown {
					want = append(want, result.Generation)
				}
				if got := v.generations(); !sameNames(got, want...) || w.Stale() != shown {
					t.Errorf("left are %q, want %q; stale: %v", got, want, w.Stale())
				}
				v.prune(w)
				v.check(tree(file("own", "1")))
			})
		}
	}
}

// TestEmptiedFilesAreBounded has far more keys go than emptied files may stay: the newest stay, over
// restarts too, and none once their room is needed.
func TestEmptiedFilesAreBounded(t *testing.T) {
	key := func(i int) string { return fmt.Sprintf("d%d/key%04d", i%7, i) }
	for _, restart := range []bool{false, true} {
		for _, content := range []string{"x", ""} { // a file that is empty already is emptied too
			t.Run(fmt.Sprintf("restart=%v/content=%q", restart, content), func(t *testing.T) {
				v, w := newVolume(t), NewInPlace(Options{})
				write := func(tr *volume.Tree) {
					t.Helper()
					if restart {
						w = NewInPlace(Options{})
					}
					v.must(second(w.Write(t.Context(), v.root, tr)))
				}
				const batch = 40
				from := func(first int) *volume.Tree {
					files := []volume.File{file("stays", "1")}
					for i := range batch {
						files = append(files, file(key(first+i), content))
					}
					return tree(files...)
				}
				last := 0
				for ; last < 2*maxEmptied; last += batch {
					write(from(last))
					// Times of files may be as coarse as a tick of the kernel's clock.
					for start := time.Now(); restart && time.Since(start) < 10*time.Millisecond; {
					}
				}
				last -= batch
				emptied := func() (keys []string) {
					for path := range v.inodes() {
						if _, name, _ := strings.Cut(path, "/key"); name != "" && name < fmt.Sprintf("%04d", last) {
							keys = append(keys, name)
						}
					}
					return keys
				}
				got := emptied()
				if len(got) != maxEmptied {
					t.Errorf("%d emptied files", len(got))
				}
				for i := last - maxEmptied + batch; i < last; i++ { // of the oldest batch only some stay
					if !slices.Contains(got, fmt.Sprintf("%04d", i)) {
						t.Errorf("the file of key %d is gone", i)
					}
				}
				if _, err := os.Stat(filepath.Join(v.path, key(last-1))); err != nil {
					t.Error(err)
				}

				stays := v.inode("stays").Ino
				if dropped, err := w.DropOldest(t.Context(), v.root); !dropped || err != nil {
					t.Errorf("DropOldest = %v, %v", dropped, err)
				}
				v.check(from(last))
				if dropped, err := w.DropOldest(t.Context(), v.root); dropped || err != nil {
					t.Errorf("DropOldest again = %v, %v", dropped, err)
				}
				if result, err := w.Write(t.Context(), v.root, from(last)); err != nil || result.Changed {
					t.Errorf("Write = %+v, %v", result, err)
				}
				write(tree(file("stays", "2")))
				if v.inode("stays").Ino != stays {
					t.Error("a file that was never gone has another inode")
				}
			})
		}
	}
}

// TestWithdrawnFilesAreBounded is the same of files that are withdrawn.
func TestWithdrawnFilesAreBounded(t *testing.T) {
	o := withAttributes(t)
	v, w := newVolume(t), NewInPlace(o)
	files := []volume.File{file("own", "1")}
	for i := range 2 * maxEmptied {
		files = append(files, naming(file(fmt.Sprintf("k%04d", i), "x"), "db"))
	}
	v.must(second(w.Write(t.Context(), v.root, tree(files...))))
	v.must(second(w.Withdraw(t.Context(), v.root, refSet("db"), false)))
	if n := len(v.inodes()); n != maxEmptied+1 {
		t.Errorf("%d files", n)
	}
	v.must(second(w.Write(t.Context(), v.root, tree(file("own", "2")))))
}
