package payload

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
			s.Projection.Items = append(s.Projection.Items, volume.Item{Key: key, Path: fmt.Sprintf("dir-%d/conf/%s", i%10, key)})
		}
	}
	return spec(s), objects(o)
}

// A large object takes time by the number of its keys, not by its square.
func TestRenderManyKeys(t *testing.T) {
	// Of 32 times as many keys, each may take up to eight times as long: garbage collection
	// takes its part. With the square of their number, each would take 32 times as long.
	const few, times = 500, 32
	for _, items := range []bool{false, true} {
		little, much := renderTime(t, few, items), renderTime(t, times*few, items)
		t.Logf("items %v: %d keys took %v, %d keys %v", items, few, little, times*few, much)
		if much > times/4*times*little {
			t.Errorf("items %v: %d keys took %v, and %d keys %v", items, few, little, times*few, much)
		}
	}
}

// renderTime renders an object of n keys a few times, and returns the shortest time that this
// thread was on a processor for it: what else the machine does makes it little longer.
func renderTime(t *testing.T, n int, items bool) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, o := many(n, items)
	best := time.Duration(math.MaxInt64)
	for range 10 {
		start := threadTime(t)
		tree, err := Render(s, o, Options{})
		best = min(best, threadTime(t)-start)
		if err != nil {
			t.Fatal(err)
		}
		if len(tree.Files) != n {
			t.Errorf("items %v: %d files, want %d", items, len(tree.Files), n)
		}
		if !slices.IsSortedFunc(tree.Files, func(a, b volume.File) int { return strings.Compare(a.Path, b.Path) }) {
			t.Errorf("items %v: the files are not sorted", items)
		}
	}
	return best
}

// threadTime returns how long this thread was on a processor.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var spent unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent); err != nil {
		t.Fatal(err)
	}
	return time.Duration(spent.Nano())
}

// BenchmarkRender renders objects with small contents, and one as large as they can be,
// whose contents cost nothing as the tree shares them.
func BenchmarkRender(b *testing.B) {
	for _, items := range []bool{false, true} {
		for _, n := range []int{1, 100, 1000} {
			s, o := many(n, items)
			b.Run(fmt.Sprintf("keys=%d/items=%v", n, items), func(b *testing.B) { render(b, s, o) })
		}
		s, o := many(100, items)
		for _, object := range o {
			for key := range object.Data {
				object.Data[key] = make([]byte, 1<<20/len(object.Data))
			}
		}
		b.Run(fmt.Sprintf("keys=100/items=%v/size=1MiB", items), func(b *testing.B) { render(b, s, o) })
	}
}

// BenchmarkRenderEnv renders env files of all keys of an object.
func BenchmarkRenderEnv(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		object := object(volume.ConfigMap, "a")
		for i := range n {
			object.Data[fmt.Sprintf("KEY_%d", i)] = []byte("a value with 'quotes'")
		}
		o := objects(object)
		s := spec(envSource(0, "app.env", volume.Env{From: []volume.EnvFrom{envFrom(volume.ConfigMap, "a", "APP_")}}))
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) { render(b, s, o) })
	}
}

func render(b *testing.B, s *volume.Spec, o Objects) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Render(s, o, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
