package integration

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

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
