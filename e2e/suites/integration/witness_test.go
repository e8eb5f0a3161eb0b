package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/history"
)

// witness reads a volume over and over, as a container does that got it when it became visible and keeps it. What it sees becomes events of
// its history, which judges it. startWitness starts its goroutine, and finish ends it.
type witness struct {
	shape  *shape
	target string
	// reads counts the looks that found all that there has to be; several witnesses may share it.
	reads *atomic.Int64
	// mayVanish says that the volume may be unpublished.
	mayVanish bool
	history   *history.History
	stop      context.CancelFunc
	ended     chan struct{}

	// root is the volume's root, nil until it is visible, and mount the id of its mount, which nothing else gets as long as root is open.
	root  *os.File
	mount uint64
	// last is what it saw last.
	last map[string]history.Version
}

func startWitness(t *testing.T, interval time.Duration, w *witness) *witness {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w.history, w.stop, w.ended = history.New(), stop, make(chan struct{})
	var objects []string
	for _, o := range w.shape.objects {
		objects = append(objects, o.name)
	}
	w.history.Declare(history.Volume{ID: w.target, Required: objects})
	go func() {
		defer close(w.ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for ctx.Err() == nil {
			w.look()
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		w.look() // at what there is in the end
		w.root.Close()
	}()
	return w
}

// finish ends the reading. It returns what was wrong with the volume.
func (w *witness) finish() error {
	w.stop()
	<-w.ended
	var errs []error
	for _, v := range w.history.Check() {
		if len(errs) < 5 {
			errs = append(errs, errors.New(v.String()))
		}
	}
	return errors.Join(errs...)
}

// look reads the volume once, if it is visible.
func (w *witness) look() {
	begin, seen := w.history.Now(), &history.Seen{Shown: map[string]history.Version{}}
	defer func() {
		if w.root != nil || len(seen.Wrong) > 0 {
			w.history.Add(history.Event{Kind: history.Saw, Volume: w.target, Begin: begin, Seen: seen})
		}
	}()
	if err := w.lookForMount(); err != nil {
		seen.Wrong = append(seen.Wrong, err.Error())
		return
	}
	if w.root == nil {
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
	root, mount, err := visible(w.target)
	switch {
	case err != nil:
		return err
	case root == nil:
		if w.root != nil && !w.mayVanish {
			return fmt.Errorf("%s is no longer mounted", w.target)
		}
		return nil
	case w.root == nil:
		w.root, w.mount = root, mount
		return nil
	}
	root.Close()
	if mount != w.mount {
		return fmt.Errorf("%s was mount %d, and now mount %d is there", w.target, w.mount, mount)
	}
	return nil
}

// visible returns the root of what is mounted at target, nil if nothing is, and the id of the mount.
func visible(target string) (root *os.File, mount uint64, err error) {
	root, err = os.Open(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	var st unix.Statx_t
	err = unix.Statx(int(root.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		root.Close()
		return nil, 0, os.NewSyscallError("statx "+target, err)
	}
	return root, st.Mnt_id, nil
}

// under returns a path that leads through an open directory.
func under(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// readGeneration reads all of the present generation through one handle.
func (w *witness) readGeneration(seen *history.Seen) (err error) {
	if seen.Generation, err = os.Readlink(under(w.root, "..data")); err != nil {
		return err // whenever that fails
	}
	dir, err := os.Open(under(w.root, "..data"))
	if err != nil {
		return err
	}
	defer dir.Close()
	generations, err := w.shape.read(under(dir, ""))
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
		if got, err := readFile(under(w.root, stays)); err != nil || got != o.value(stays, 0) {
			return fmt.Errorf("link to %s: holds %q: %w", stays, got, cmpErr(err))
		}
		got, err := readFile(under(w.root, changes))
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

// noLinkTooEarly checks that no name shows before ..data has its file. A link may lead nowhere for a moment only after its key has gone.
func (w *witness) noLinkTooEarly(seen *history.Seen) error {
	links, err := os.ReadDir(under(w.root, "."))
	if err != nil {
		return gone(err)
	}
	for _, link := range links {
		if _, err := os.Stat(under(w.root, link.Name())); err == nil {
			continue
		}
		now := &history.Seen{Shown: map[string]history.Version{}}
		if err := w.readGeneration(now); err != nil {
			return err
		}
		seen.Shown = now.Shown
		for _, o := range w.shape.objects {
			var of int
			if _, err := fmt.Sscanf(link.Name(), o.key("only-%d"), &of); err == nil && of > now.Shown[o.name].N {
				return fmt.Errorf("link %s is there and its file is not, at generation %d", link.Name(), now.Shown[o.name].N)
			}
		}
	}
	return nil
}

var errTorn = errors.New("torn")

func cmpErr(err error) error {
	if err == nil {
		return errTorn
	}
	return err
}
