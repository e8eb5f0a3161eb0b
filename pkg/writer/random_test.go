package writer

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/volume"
)

// FuzzSequences writes random trees one after the other, some of them interrupted by a fault or a restart, and compares the directory with
// each.
func FuzzSequences(f *testing.F) {
	for _, seed := range dice.Seeds(f, 4) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		t.Logf("seed %d", seed)
		s := sequence{Rand: rand.New(rand.NewPCG(seed, 0)), testVolume: newVolume(t), w: New(Options{})}
		s.tree = tree()
		for range 30 {
			s.step()
		}
	})
}

type sequence struct {
	*rand.Rand
	*testVolume
	w    *Writer
	tree *volume.Payload
}

func (s *sequence) step() {
	s.Helper()
	if s.IntN(4) > 0 {
		s.tree = s.change()
	}
	if s.IntN(5) == 0 {
		s.w = New(s.w.opts)
	}
	s.write(s.w, s.tree)
	if result := s.write(s.w, s.tree); result.Changed {
		s.Errorf("written again: %+v", result)
	}
}

// change returns a tree that differs slightly from the present one.
func (s *sequence) change() *volume.Payload {
	files := map[string]volume.File{}
	for _, f := range s.tree.Files {
		if s.IntN(5) > 0 {
			files[f.Path] = f
		}
	}
	for range s.IntN(5) {
		f := file(s.path(), strings.Repeat(fmt.Sprint(s.IntN(10)), s.IntN(3)*s.IntN(3000)))
		f.Mode = []fs.FileMode{0o644, 0o640, 0o600}[s.IntN(3)]
		for path := range files {
			if below(path, f.Path) || below(f.Path, path) {
				delete(files, path)
			}
		}
		files[f.Path] = f
	}
	next := tree()
	for _, f := range files {
		next.Files = append(next.Files, f)
	}
	next = tree(next.Files...)
	next.DirMode = s.tree.DirMode
	if s.IntN(8) == 0 {
		next.DirMode = []fs.FileMode{0o755, 0o750, 0o700 | fs.ModeSetgid}[s.IntN(3)]
	}
	return next
}

// path uses few elements, so that files and directories often conflict.
func (s *sequence) path() string {
	elements := make([]string, 1+s.IntN(4))
	for i := range elements {
		elements[i] = []string{"a", "b", "a-", "a.b", ".c", "Z"}[s.IntN(6)]
	}
	return strings.Join(elements, "/")
}
