package writer

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bothWriters are a writer of each strategy, which knows nothing of the volume.
func bothWriters() map[string]*Writer {
	return map[string]*Writer{"Atomic": New(Options{}), "InPlace": newInPlace(Options{})}
}

// TestAFileOfHoles has somebody enlarge a file by more than a file system holds: that is
// neither counted nor read, and goes with the next write.
func TestAFileOfHoles(t *testing.T) {
	for name, w := range bothWriters() {
		t.Run(name, func(t *testing.T) {
			v, shown := newVolume(t), tree(file("a", "1"), file("b", "2"))
			v.write(bothWriters()[name], shown)
			if err := os.Truncate(filepath.Join(v.path, "a"), 1<<40); err != nil {
				t.Fatal(err)
			}
			v.write(w, shown)
		})
	}
}

// TestDeepDirectories has somebody nest directories far deeper than a path can be, in the generation and beside it, with
// few descriptors left: the next write takes little memory, and what is beside the present generation goes.
func TestDeepDirectories(t *testing.T) {
	for name, w := range bothWriters() {
		t.Run(name, func(t *testing.T) {
			v, shown := newVolume(t), tree(file("a", "1"))
			first := v.write(bothWriters()[name], shown)
			nest(t, filepath.Join(v.path, first.Generation), 20_000)
			v.must(os.Mkdir(filepath.Join(v.path, leftover), 0o755))
			nest(t, filepath.Join(v.path, leftover), 20_000)
			var limit unix.Rlimit
			v.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
			few := limit
			few.Cur = uint64(openDescriptors(t) + 8)
			v.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
			const most = 256 << 20
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := w.Write(t.Context(), v.root, tree(file("a", "2")))
			written := time.Now()
			_, pruneErr := Prune(v.root, time.Now())
			t.Logf("the next write took %v, what is beside it %v to remove", written.Sub(start), time.Since(written))
			runtime.ReadMemStats(&after)
			v.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
			v.must(errors.Join(err, pruneErr))
			if took := after.TotalAlloc - before.TotalAlloc; took > most {
				t.Errorf("a write took %d bytes, want %d at most", took, most)
			}
			if got := v.generations(); len(got) != 1 {
				t.Errorf("left are %q", got)
			}
			if name == "InPlace" { // os.RemoveAll takes long for it
				root, err := openRoot(v.root)
				v.must(err)
				v.must(removeAll(int(root.Fd()), first.Generation))
				v.must(root.Close())
			}
		})
	}
}

// nest makes directories in each other, whose path together is too long for a system call.
func nest(t *testing.T, path string, levels int) {
	t.Helper()
	at, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { unix.Close(at) }()
	name := strings.Repeat("n", 100)
	for range levels {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
}
