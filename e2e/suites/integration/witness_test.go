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
)

// witness reads a volume as a container does that got it when it became visible and keeps
// it. One goroutine at a time may use it.
type witness struct {
	shape  *shape
	target string
	reads  *reads
	// root is the volume's root, -1 until it is visible, and mount the id of its mount,
	// which nothing else gets as long as root is open.
	root  int
	mount uint64
	// last is the newest generation that was seen of each object.
	last []int
	// mayVanish says that the volume may be unpublished.
	mayVanish bool
}

// newWitness returns a witness that counts its reads in r.
func newWitness(s *shape, target string, mayVanish bool, r *reads) *witness {
	return &witness{shape: s, target: target, reads: r, root: -1, last: make([]int, len(s.objects)), mayVanish: mayVanish}
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

// finish ends the reading. It returns the first thing that was wrong with a volume.
func (r *reading) finish() error {
	r.stop()
	return <-r.result
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
	if err := w.lookForMount(); err != nil || w.root < 0 {
		return err
	}
	begin := time.Now()
	return w.reads.count(begin, errors.Join(w.readGeneration(), w.readLinks()))
}

// lookForMount opens the volume once it is visible, and from then on checks that a
// container that starts now would get the same mount.
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

// visible returns a descriptor of the root of what is mounted at target, -1 if nothing
// is, and the id of the mount.
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
	if !slices.Equal(generations, w.last) {
		w.reads.newer.Add(1)
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

// promptly is how long a reader may take from opening ..data to its last file and be
// sure that the generation is still there.
const promptly = 20 * time.Millisecond

// errGone is why something can't be read that should be there.
var errGone = errors.New("not there")

// gone adds errGone to an error that says that something is not there.
func gone(what string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return fmt.Errorf("%s: %w (%w)", what, errGone, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// reads counts what the readers of volumes did. It is safe for concurrent use.
type reads struct {
	// late reads took so long that what they had begun to read was gone; whole ones
	// found all that there has to be, and newer ones of a generation that the reader had not seen.
	whole, late, newer atomic.Int64
}

// count counts a read that began at begin and has just ended with err. It returns err,
// or nil if that is errGone and the read was late.
func (r *reads) count(begin time.Time, err error) error {
	switch {
	case err == nil:
		r.whole.Add(1)
	case errors.Is(err, errGone) && time.Since(begin) > promptly:
		r.late.Add(1)
		return nil
	}
	return err
}

// check returns an error if that was too little to mean anything: no read at all, or
// more late ones than a few and one in twenty.
func (r *reads) check() error {
	const few = 3
	whole, late := r.whole.Load(), r.late.Load()
	if whole == 0 || late > few+whole/20 {
		return fmt.Errorf("the readers saw too little: %s", r)
	}
	return nil
}

func (r *reads) String() string {
	return fmt.Sprintf("%d reads and %d that were too late to count", r.whole.Load(), r.late.Load())
}
