package payload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// many returns a spec and an object of n keys, shown under their names or, with
// items, below directories.
func many(n int, items bool) (*volume.Spec, Objects) {
	o := object(volume.ConfigMap, "a")
	s := source(0, volume.ConfigMap, "a")
	for i := range n {
		key := fmt.Sprintf("key-%d", i)
		o.Data[key] = []byte(key)
		if items {
			s.Items = append(s.Items, volume.Item{Key: key, Path: fmt.Sprintf("dir-%d/conf/%s", i%10, key)})
		}
	}
	return spec(s), objects(o)
}

// A large object takes milliseconds, not time by the square of its keys.
func TestRenderManyKeys(t *testing.T) {
	const n = 5000
	for _, items := range []bool{false, true} {
		s, o := many(n, items)
		start := time.Now()
		tree, err := Render(s, o, Options{})
		took := time.Since(start)
		if err != nil {
			t.Fatal(err)
		}
		if len(tree.Files) != n {
			t.Errorf("items %v: %d files, want %d", items, len(tree.Files), n)
		}
		if !slices.IsSortedFunc(tree.Files, func(a, b volume.File) int { return strings.Compare(a.Path, b.Path) }) {
			t.Errorf("items %v: the files are not sorted", items)
		}
		// Generous, for a busy machine and the race detector.
		if took > 2*time.Second {
			t.Errorf("items %v: %d keys took %v", items, n, took)
		}
	}
}

func BenchmarkRender(b *testing.B) {
	for _, items := range []bool{false, true} {
		for _, n := range []int{1, 100, 1000} {
			s, o := many(n, items)
			b.Run(fmt.Sprintf("keys=%d/items=%v", n, items), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Render(s, o, Options{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
