package writer

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// bothWriters are a writer of each strategy, which knows nothing of the volume.
func bothWriters() map[string]treeWriter {
	return map[string]treeWriter{"Atomic": New(Options{}), "InPlace": NewInPlace(Options{})}
}

// TestAFileOfHoles has somebody enlarge a file by more than a file system holds: that is
// neither counted nor read, and goes with the next write.
func TestAFileOfHoles(t *testing.T) {
	for name, w := range bothWriters() {
		t.Run(name, func(t *testing.T) {
			v, shown := newVolume(t), tree(file("a", "1"), file("b", "2"))
			v.write(bothWriters()[name], shown)
			if err := os.Truncate(filepath.Join(v.path, "a"), 4<<30); err != nil {
				t.Fatal(err)
			}
			size, err := w.Size(t.Context(), v.root)
			if err != nil || size.Bytes > Measure(shown).Bytes {
				t.Errorf("it takes %+v, %v", size, err)
			}
			v.write(w, shown)
		})
	}
}

// TestDeepDirectories has somebody nest directories deeper than a path can be: a scan takes little more
// memory for them than maxScannedPaths. InPlace leaves what is deep.
func TestDeepDirectories(t *testing.T) {
	for name, w := range bothWriters() {
		t.Run(name, func(t *testing.T) {
			v, shown := newVolume(t), tree(file("a", "1"))
			nest(t, filepath.Join(v.path, v.write(bothWriters()[name], shown).Generation), 3000)
			const most = maxScannedPaths + 32<<20
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := w.Size(t.Context(), v.root); err != nil {
				t.Error(err)
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > most {
				t.Errorf("a scan took %d bytes, want %d at most", took, most)
			}
			if name == "Atomic" {
				v.write(w, shown)
			} else if _, err := w.Write(t.Context(), v.root, shown); err != nil {
				t.Error(err)
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
