package writer

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

var benchSizes = []int{1, 10, 100, 1000, 5000}

// benchTree returns a tree of n files of 1 KiB, each with its own memory.
func benchTree(n int) *volume.Payload {
	tree := &volume.Payload{DirMode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
	for i := range n {
		data := bytes.Repeat([]byte{byte('a' + i%26)}, 1024)
		tree.Files = append(tree.Files, volume.File{Path: fmt.Sprintf("key-%05d", i), Data: data, Mode: 0o644})
	}
	return tree
}

func benchmarkSizes(b *testing.B, run func(b *testing.B, root *os.Root, tree *volume.Payload)) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			run(b, newVolume(b).root, benchTree(n))
		})
	}
}

func mustWrite(b *testing.B, w *Writer, root *os.Root, tree *volume.Payload, changed bool) {
	result, err := w.Write(b.Context(), root, tree)
	if err != nil {
		b.Fatal(err)
	}
	if result.Changed != changed {
		b.Fatalf("Changed = %v, want %v", result.Changed, changed)
	}
}

func BenchmarkFirstWrite(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, root *os.Root, tree *volume.Payload) {
		for b.Loop() {
			b.StopTimer()
			if err := root.Mkdir("volume", 0o755); err != nil {
				b.Fatal(err)
			}
			dir, err := root.OpenRoot("volume")
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			mustWrite(b, New(Options{}), dir, tree, true)
			b.StopTimer()
			dir.Close()
			if err := root.RemoveAll("volume"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

// BenchmarkOneKeyChanged changes one key. The other contents are in new memory too, as when an object arrives from the API server.
func BenchmarkOneKeyChanged(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, root *os.Root, tree *volume.Payload) {
		w := New(Options{})
		mustWrite(b, w, root, tree, true)
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			next := benchTree(len(tree.Files))
			copy(next.Files[0].Data, fmt.Sprintf("%08d", i))
			b.StartTimer()
			mustWrite(b, w, root, next, true)
		}
	})
}

// BenchmarkNothingChanged writes the same tree, rendered from the same object.
func BenchmarkNothingChanged(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, root *os.Root, tree *volume.Payload) {
		w := New(Options{})
		mustWrite(b, w, root, tree, true)
		for b.Loop() {
			mustWrite(b, w, root, tree, false)
		}
	})
}

// BenchmarkRestart measures the first write of a new Writer that finds the tree in place and reads all files.
func BenchmarkRestart(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, root *os.Root, tree *volume.Payload) {
		mustWrite(b, New(Options{}), root, tree, true)
		for b.Loop() {
			mustWrite(b, New(Options{}), root, tree, false)
		}
	})
}
