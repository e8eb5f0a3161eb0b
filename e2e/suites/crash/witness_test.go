package crash

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// object is a ConfigMap or a Secret whose contents tell of themselves to which generation
// they belong. With each generation one key comes, one goes, one changes, and one stays.
type object struct {
	kind, name string
	// padding makes each value longer and has the canary in it.
	padding string
}

func (o *object) key(name string) string { return o.name + "." + name }

func (o *object) value(key string, since int) string {
	return fmt.Sprintf("%s %d\n%s\nend\n", key, since, o.padding)
}

// data returns what the object holds at a generation.
func (o *object) data(generation int) map[string]string {
	data := map[string]string{o.key("manifest"): fmt.Sprintf("%d\n", generation)}
	for key, since := range map[string]int{"stays": 0, "changes": generation, fmt.Sprint("only-", generation): generation} {
		data[o.key(key)] = o.value(o.key(key), since)
	}
	return data
}

// shape is what a volume is made of.
type shape struct {
	name     string
	objects  []*object
	strategy string
}

func (s *shape) attributes() map[string]string {
	var sources strings.Builder
	for _, o := range s.objects {
		fmt.Fprintf(&sources, "- %s: {name: %s}\n", o.kind, o.name)
	}
	return map[string]string{"sources": sources.String(), "writeStrategy": s.strategy}
}

// read returns of which generation of each object the files are, which must be all of it and nothing else.
func (s *shape) read(files map[string]string) ([]int, error) {
	want, generations := map[string]string{}, make([]int, len(s.objects))
	for i, o := range s.objects {
		manifest := files[o.key("manifest")]
		if _, err := fmt.Sscanf(manifest, "%d\n", &generations[i]); err != nil {
			return nil, fmt.Errorf("manifest of %s is torn: %q", o.name, manifest)
		}
		maps.Copy(want, o.data(generations[i]))
	}
	if !maps.Equal(files, want) {
		return nil, fmt.Errorf("the files are %q, want %q", files, want)
	}
	return generations, nil
}

// witness reads a volume over and over, as a container does that got it when it became visible and keeps it. startWitness starts its
// goroutine, and finish ends it.
type witness struct {
	shape  *shape
	target string
	// reads counts the looks that found all that there has to be; several witnesses may share it.
	reads *atomic.Int64
	// mayVanish says that the volume may be unpublished.
	mayVanish bool
	stop      context.CancelFunc
	ended     chan struct{}
	// err is what was wrong at the last look; it may be read once ended is closed.
	err error

	// root is the volume's root, nil until it is visible, and mount the id of its mount, which nothing else gets as long as root is open.
	root  *os.File
	mount uint64
	// last are the generations that it saw last.
	last []int
}

func startWitness(t *testing.T, interval time.Duration, w *witness) *witness {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w.stop, w.ended, w.last = stop, make(chan struct{}), make([]int, len(w.shape.objects))
	go func() {
		defer close(w.ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for ctx.Err() == nil && w.err == nil {
			w.err = w.look()
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		if w.err == nil {
			w.err = w.look() // at what there is in the end
		}
		w.root.Close()
	}()
	return w
}

// finish ends the reading. It returns what was wrong with the volume.
func (w *witness) finish() error {
	w.stop()
	<-w.ended
	return w.err
}

// look reads the volume once, if it is visible.
func (w *witness) look() error {
	if err := w.lookForMount(); err != nil || w.root == nil {
		return err
	}
	begin := time.Now()
	err := w.readGeneration()
	if err == nil {
		w.reads.Add(1)
	}
	// A generation stays for a second after the next one is there.
	if time.Since(begin) > time.Second && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESTALE)) {
		return nil
	}
	return err
}

// lookForMount opens the volume once it is visible, and from then on checks that a container that starts now would get the same mount.
func (w *witness) lookForMount() error {
	root, err := os.Open(w.target)
	var st unix.Statx_t
	if err == nil {
		err = unix.Statx(int(root.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	}
	isMounted := st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	if isMounted && w.root == nil {
		w.root, w.mount = root, st.Mnt_id
		return nil
	}
	root.Close()
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look for a mount at %s: %w", w.target, err)
	case !isMounted && w.root != nil && !w.mayVanish:
		return fmt.Errorf("%s is no longer mounted", w.target)
	case isMounted && st.Mnt_id != w.mount:
		return fmt.Errorf("%s was mount %d, and now mount %d is there", w.target, w.mount, st.Mnt_id)
	}
	return nil
}

// under returns a path that leads through an open directory.
func under(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// readGeneration reads all of the present generation through one handle, and then through a link that users see.
func (w *witness) readGeneration() error {
	dir, err := os.Open(under(w.root, "..data"))
	if err != nil {
		return err
	}
	defer dir.Close()
	files, err := harness.Files(under(dir, ""))
	if err != nil {
		return err
	}
	generations, err := w.shape.read(files)
	if err != nil {
		return err
	}
	for i, o := range w.shape.objects {
		if generations[i] < w.last[i] {
			return fmt.Errorf("%s went back from generation %d to %d", o.name, w.last[i], generations[i])
		}
		key, since := o.key("changes"), 0
		text, err := os.ReadFile(under(w.root, key))
		if err != nil {
			return err
		}
		_, _ = fmt.Sscanf(string(text), key+" %d\n", &since)
		if string(text) != o.value(key, since) || since < generations[i] {
			return fmt.Errorf("link to %s: torn, or before generation %d: %q", key, generations[i], text)
		}
	}
	w.last = generations
	return nil
}
