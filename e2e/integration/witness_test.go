package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// witness reads a volume as a container does that got it when it became visible and keeps
// it. One goroutine at a time may use it.
type witness struct {
	shape  *shape
	target string
	reads  int
	// root is the volume's root, -1 until it is visible.
	root int
	// last is the newest generation that was seen of each object.
	last []int
	// mayVanish says that the volume may be unpublished.
	mayVanish bool
}

func newWitness(s *shape, target string, mayVanish bool) *witness {
	return &witness{shape: s, target: target, root: -1, last: make([]int, len(s.objects)), mayVanish: mayVanish}
}

// reading is a goroutine that has witnesses read, in turn and over and over. startReading
// starts it, and finish ends it.
type reading struct {
	witnesses []*witness
	// interval is the time from one look to the next.
	interval time.Duration
	stop     context.CancelFunc
	result   chan error
}

func startReading(t *testing.T, interval time.Duration, witnesses ...*witness) *reading {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &reading{witnesses: witnesses, interval: interval, stop: stop, result: make(chan error, 1)}
	go func() { r.result <- r.run(ctx) }()
	return r
}

// finish ends the reading. It returns how often volumes were read, and the first thing
// that was wrong with one.
func (r *reading) finish() (reads int, err error) {
	r.stop()
	err = <-r.result
	for _, w := range r.witnesses {
		reads += w.reads
	}
	return reads, err
}

func (r *reading) run(ctx context.Context) error {
	defer func() {
		for _, w := range r.witnesses {
			if w.root >= 0 {
				unix.Close(w.root)
			}
		}
	}()
	tick := time.NewTicker(r.interval)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		if err := r.witnesses[i%len(r.witnesses)].look(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for _, w := range r.witnesses { // what there is in the end
		if err := w.look(); err != nil {
			return err
		}
	}
	return nil
}

// look reads the volume once, if it is visible, and returns what is wrong with it.
func (w *witness) look() error {
	fd, err := visible(w.target)
	if err != nil {
		return err
	}
	switch {
	case fd < 0 && w.root >= 0 && !w.mayVanish:
		return fmt.Errorf("%s is no longer mounted", w.target)
	case fd >= 0 && w.root < 0:
		w.root = fd
	case fd >= 0:
		unix.Close(fd)
	}
	if w.root < 0 {
		return nil
	}
	w.reads++
	begin := time.Now()
	if err := errors.Join(w.readGeneration(), w.readLinks()); err != nil {
		// Who takes that long may find a generation of the past removed.
		if took := time.Since(begin); took > promptly && errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	return nil
}

// visible returns a descriptor of the root of what is mounted at target, -1 if nothing
// is.
func visible(target string) (int, error) {
	fd, err := unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return -1, nil
	}
	if err != nil {
		return -1, os.NewSyscallError("open "+target, err)
	}
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st)
	if err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		unix.Close(fd)
		return -1, os.NewSyscallError("statx "+target, err)
	}
	return fd, nil
}

// readGeneration reads all of the present generation through one handle.
func (w *witness) readGeneration() error {
	dir, err := unix.Openat(w.root, "..data", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open ..data", err) // whenever that fails
	}
	defer unix.Close(dir)
	generations, err := w.shape.read(dir)
	if err != nil {
		return err
	}
	for i, o := range w.shape.objects {
		if generations[i] < w.last[i] {
			return fmt.Errorf("%s went back from generation %d to %d", o.name, w.last[i], generations[i])
		}
	}
	w.last = generations
	return nil
}

// readLinks reads through the links that users see.
func (w *witness) readLinks() error {
	for i, o := range w.shape.objects {
		stays, changes := o.key("stays"), o.key("changes")
		if got, err := readAt(w.root, o.path(stays)); err != nil || got != o.value(stays, 0) {
			return fmt.Errorf("link to %s: holds %q: %w", stays, got, cmpErr(err))
		}
		got, err := readAt(w.root, o.path(changes))
		if err != nil {
			return fmt.Errorf("link to %s: %w", changes, err)
		}
		var since int
		if _, err := fmt.Sscanf(got, changes+" %d\n", &since); err != nil || got != o.value(changes, since) {
			return fmt.Errorf("link to %s: torn: %q", changes, got)
		}
		if since < w.last[i] {
			return fmt.Errorf("link to %s: went back from generation %d to %d", changes, w.last[i], since)
		}
	}
	return w.noLinkTooEarly()
}

var errTorn = errors.New("torn")

func cmpErr(err error) error {
	if err == nil {
		return errTorn
	}
	return err
}

// noLinkTooEarly checks that no name shows before ..data has its file. A link may lead
// nowhere for a moment only after its key has gone.
func (w *witness) noLinkTooEarly() error {
	names, err := namesAt(w.root)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "..") || unix.Faccessat(w.root, name, unix.F_OK, 0) == nil
	})
	if len(names) == 0 {
		return nil
	}
	if err := w.readGeneration(); err != nil {
		return err
	}
	for i, o := range w.shape.objects {
		for _, name := range names {
			var of int
			if _, err := fmt.Sscanf(name, o.key("only-%d"), &of); err == nil && of > w.last[i] {
				return fmt.Errorf("link %s is there and its file is not, at generation %d", name, w.last[i])
			}
		}
	}
	return nil
}
