package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/history"
)

// witness reads a volume as a container does that got it when it became visible and keeps it. What it saw becomes an event of the history
// of its reading, which judges it. One goroutine at a time may use it.
type witness struct {
	shape  *shape
	target string
	// reads counts the looks that found all that there has to be; several witnesses may share it.
	reads *atomic.Int64
	// history belongs to the reading.
	history *history.History
	// root is the volume's root, -1 until it is visible, and mount the id of its mount, which nothing else gets as long as root is open.
	root  int
	mount uint64
	// last is what it saw last.
	last map[string]history.Version
	// mayVanish says that the volume may be unpublished.
	mayVanish bool
}

// newWitness returns a witness that counts its reads in r.
func newWitness(s *shape, target string, mayVanish bool, r *atomic.Int64) *witness {
	return &witness{shape: s, target: target, reads: r, root: -1, mayVanish: mayVanish}
}

// reading is a goroutine that has witnesses read, in turn and over and over. startReading starts it, and finish ends it.
type reading struct {
	witnesses []*witness
	history   *history.History
	// interval is the time from one look to the next.
	interval time.Duration
	stop     context.CancelFunc
	ended    chan struct{}
}

func startReading(t *testing.T, interval time.Duration, witnesses ...*witness) *reading {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &reading{witnesses: witnesses, history: history.New(), interval: interval, stop: stop, ended: make(chan struct{})}
	for _, w := range witnesses {
		w.history = r.history
		var objects []string
		for _, o := range w.shape.objects {
			objects = append(objects, o.name)
		}
		r.history.Declare(history.Volume{ID: w.target, Required: objects})
	}
	go r.run(ctx)
	return r
}

// finish ends the reading. It returns what was wrong with the volumes.
func (r *reading) finish() error {
	r.stop()
	<-r.ended
	var errs []error
	for _, v := range r.history.Check() {
		if len(errs) < 5 {
			errs = append(errs, errors.New(v.String()))
		}
	}
	return errors.Join(errs...)
}

func (r *reading) run(ctx context.Context) {
	defer close(r.ended)
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
		r.witnesses[i%len(r.witnesses)].look()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for _, w := range r.witnesses { // what there is in the end
		w.look()
	}
}

// look reads the volume once, if it is visible.
func (w *witness) look() {
	begin, seen := w.history.Now(), &history.Seen{Shown: map[string]history.Version{}}
	defer func() {
		if w.root >= 0 || len(seen.Wrong) > 0 {
			w.history.Add(history.Event{Kind: history.Saw, Volume: w.target, Begin: begin, Seen: seen})
		}
	}()
	if err := w.lookForMount(); err != nil {
		seen.Wrong = append(seen.Wrong, err.Error())
		return
	}
	if w.root < 0 {
		return
	}
	err := w.readGeneration(seen)
	if err == nil {
		err = w.readLinks(seen)
	}
	switch {
	case errors.Is(err, errGone):
		seen.Gone, seen.Shown = err.Error(), w.last // whether that may be is for the history
	case err != nil:
		seen.Wrong = append(seen.Wrong, err.Error())
	default:
		w.reads.Add(1)
	}
	w.last = seen.Shown
}

// lookForMount opens the volume once it is visible, and from then on checks that a container that starts now would get the same mount.
func (w *witness) lookForMount() error {
	fd, mount, err := visible(w.target)
	switch {
	case err != nil:
		return err
	case fd < 0:
		if w.root >= 0 && !w.mayVanish {
			return fmt.Errorf("%s is no longer mounted", w.target)
		}
		return nil
	case w.root < 0:
		w.root, w.mount = fd, mount
		return nil
	}
	unix.Close(fd)
	if mount != w.mount {
		return fmt.Errorf("%s was mount %d, and now mount %d is there", w.target, w.mount, mount)
	}
	return nil
}

// visible returns a descriptor of the root of what is mounted at target, -1 if nothing is, and the id of the mount.
func visible(target string) (fd int, mount uint64, err error) {
	fd, err = unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return -1, 0, nil
	}
	if err != nil {
		return -1, 0, os.NewSyscallError("open "+target, err)
	}
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		unix.Close(fd)
		return -1, 0, os.NewSyscallError("statx "+target, err)
	}
	return fd, st.Mnt_id, nil
}

// present returns the name of the generation that ..data points to.
func (w *witness) present() string {
	name := make([]byte, 256)
	n, err := unix.Readlinkat(w.root, "..data", name)
	if err != nil {
		return ""
	}
	return string(name[:n])
}

// readGeneration reads all of the present generation through one handle.
func (w *witness) readGeneration(seen *history.Seen) error {
	seen.Generation = w.present()
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
		seen.Shown[o.name] = history.Version{UID: "-", N: generations[i]}
	}
	return nil
}

// readLinks reads through the links that users see.
func (w *witness) readLinks(seen *history.Seen) error {
	for _, o := range w.shape.objects {
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
		if since < seen.Shown[o.name].N {
			return fmt.Errorf("link to %s: went back from generation %d to %d", changes, seen.Shown[o.name].N, since)
		}
	}
	return w.noLinkTooEarly(seen)
}

var errTorn = errors.New("torn")

func cmpErr(err error) error {
	if err == nil {
		return errTorn
	}
	return err
}

// noLinkTooEarly checks that no name shows before ..data has its file. A link may lead nowhere for a moment only after its key has gone.
func (w *witness) noLinkTooEarly(seen *history.Seen) error {
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
	now := &history.Seen{Shown: map[string]history.Version{}}
	if err := w.readGeneration(now); err != nil {
		return err
	}
	for _, o := range w.shape.objects {
		for _, name := range names {
			var of int
			if _, err := fmt.Sscanf(name, o.key("only-%d"), &of); err == nil && of > now.Shown[o.name].N {
				return fmt.Errorf("link %s is there and its file is not, at generation %d", name, now.Shown[o.name].N)
			}
		}
	}
	seen.Shown = now.Shown
	return nil
}

// errGone is why something can't be read that should be there.
var errGone = errors.New("not there")

// gone adds errGone to an error that says that something is not there.
func gone(what string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return fmt.Errorf("%s: %w (%w)", what, errGone, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
