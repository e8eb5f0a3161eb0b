package writer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	fireKeys    = 8
	fireReaders = 8
)

// fireSize returns how many updates there are, and how long a busy machine has for
// them. REFVOL_LONG asks for the long form, as in e2e.
func fireSize() (updates int, within time.Duration) {
	if os.Getenv("REFVOL_LONG") != "" {
		return 100_000, time.Hour
	}
	return 3000, 2 * time.Second
}

// fireTree is version n: every file holds n, some only every second version, so
// that there is something to link, and to add and to remove.
func fireTree(n int) *volume.Payload {
	var files []volume.File
	for k := range fireKeys {
		files = append(files, withMode(0o440, file(fmt.Sprintf("d%d/key", k%3)+strconv.Itoa(k), strconv.Itoa(n))))
	}
	files = append(files, withMode(0o440, file("same", "never changes")))
	if n%2 == 0 {
		files = append(files, withMode(0o440, file("even", strconv.Itoa(n))))
	}
	return tree(files...)
}

// TestReadersUnderFire has readers open ..data once and read all of it from there,
// again and again, while the volume changes as fast as it can.
func TestReadersUnderFire(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	v.write(w, fireTree(0))
	done := make(chan struct{})
	var group sync.WaitGroup
	readers := make([]*reader, fireReaders)
	for i := range readers {
		r := &reader{t: t, data: filepath.Join(v.path, dataName)}
		readers[i] = r
		group.Go(func() { r.run(done) })
	}
	version := 0
	updates, within := fireSize()
	for start := time.Now(); version < updates && time.Since(start) < within || slowest(readers) < 3; version++ {
		if _, err := w.Write(t.Context(), v.root, fireTree(version+1)); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	group.Wait()
	t.Logf("%d updates", version)
	for _, r := range readers {
		t.Logf("a reader got through %d generations", r.whole.Load())
		if r.last != version {
			t.Errorf("a reader saw version %d last, want %d", r.last, version)
		}
	}
	v.prune()
	v.check(fireTree(version))
}

type reader struct {
	t     *testing.T
	data  string
	last  int          // the version seen last; the reader's own until it is done
	whole atomic.Int64 // how many generations were read to the end
}

// run reads until done is closed, and once more after that.
func (r *reader) run(done <-chan struct{}) {
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		r.read()
	}
}

// slowest returns how far the slowest reader has got, and a large number once a
// test has failed and nobody gets any further.
func slowest(readers []*reader) int64 {
	least := int64(math.MaxInt64)
	for _, r := range readers {
		if !r.t.Failed() {
			least = min(least, r.whole.Load())
		}
	}
	return least
}

// read opens ..data and reads every file, as often as it takes to get through one
// generation. A generation may be removed in the middle; it may not be mixed,
// older than the one before, or closed to the reader for a moment.
func (r *reader) read() {
	for !r.t.Failed() {
		dir, err := os.OpenRoot(r.data)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the target was removed between the two steps of following the link
		}
		if err != nil {
			r.t.Error(err)
			return
		}
		version, err := r.readGeneration(dir)
		gone := err != nil && errors.Is(err, fs.ErrNotExist) && r.retired(dir)
		dir.Close()
		if gone {
			continue
		}
		if err != nil {
			r.t.Error(err)
			return
		}
		if version < r.last {
			r.t.Errorf("version %d after %d", version, r.last)
		}
		r.last = version
		r.whole.Add(1)
		return
	}
}

// retired reports whether ..data points at something else than dir by now.
func (r *reader) retired(dir *os.Root) bool {
	held, err := dir.Stat(".")
	if err != nil {
		r.t.Error(err)
		return false
	}
	now, err := os.Stat(r.data)
	return err != nil || !os.SameFile(held, now)
}

func (r *reader) readGeneration(dir *os.Root) (int, error) {
	info, err := dir.Stat(".")
	if err != nil {
		return 0, err
	}
	if info.Mode() != fs.ModeDir|0o755 {
		return 0, fmt.Errorf("a generation of mode %v", info.Mode())
	}
	version := -1
	for _, f := range fireTree(0).Files {
		content, err := readFile(dir, f.Path)
		switch {
		case f.Path == "even" && errors.Is(err, fs.ErrNotExist) && (version%2 == 1 || r.retired(dir)):
		case err != nil:
			return 0, err
		case f.Path == "same":
			if content != "never changes" {
				return 0, fmt.Errorf("same holds %q", content)
			}
		default:
			n, err := strconv.Atoi(content)
			if err != nil || version >= 0 && n != version {
				return 0, fmt.Errorf("%s holds %q in version %d", f.Path, content, version)
			}
			version = n
		}
	}
	return version, nil
}

func readFile(dir *os.Root, path string) (string, error) {
	f, err := dir.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode() != 0o440 {
		return "", fmt.Errorf("%s has mode %v", path, info.Mode())
	}
	content, err := io.ReadAll(f)
	return string(content), err
}
