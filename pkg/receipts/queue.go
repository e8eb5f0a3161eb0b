package receipts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Run reports opens until ctx ends. An error ends all watches, whose owners are told; they may begin anew.
func (g *Group) Run(ctx context.Context) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for empty := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		empty++
		for first, n := true, busy; n >= busy && ctx.Err() == nil; first = false {
			if n, _ = g.read(first, nil); n > 0 {
				empty = 0
			}
		}
		if timer.Reset(pause); empty > maxEmpty {
			timer.Reset(idlePause)
		}
	}
}

// errSlow is why a Drain has not reported all.
var errSlow = errors.New("the opens that are queued can't be read in time")

// Drain reports all opens until now before it returns. So what is reported later was opened later: who rewrites a file in
// place and then drains knows which opens may have been of the old content. It fails if that takes longer than a time.
func (g *Group) Drain(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	_, err := g.read(false, timer.C)
	return err
}

// Reads returns how many reads of the queue have ended. What was queued at a moment is reported once there are two more: the
// first of them may have begun before.
func (g *Group) Reads() uint64 { return g.reads.Load() }

// batch is what one read has found.
type batch struct {
	opened map[*watch]map[string]bool
	lost   bool
	events int
}

// read takes what is queued off the queue, reports it, and returns how many events these were. What comes meanwhile is left
// to the next read, so nobody's opens keep it from its end. A later read begins when all of this is reported. anew says that
// a pause has passed. It gives up with errSlow after late.
func (g *Group) read(anew bool, late <-chan time.Time) (events int, err error) {
	select {
	case g.reading <- struct{}{}:
		defer func() { <-g.reading }()
	case <-late:
		return 0, errSlow
	}
	if anew {
		if g.latePauses++; g.late <= g.most {
			g.latePauses = 0
		}
		clear(g.counts)
		g.total, g.late = 0, 0
	}
	g.mu.Lock()
	fd, closed := g.fd, g.closed
	g.mu.Unlock()
	switch {
	case closed:
		return 0, fmt.Errorf("read the fanotify group: %w", os.ErrClosed)
	case fd < 0:
		return 0, nil
	}
	queued, err := unix.IoctlGetInt(fd, unix.TIOCINQ) // which counts an event as its metadata, whatever it has besides
	queued /= metadataSize
	if err != nil {
		return 0, g.discard(fmt.Errorf("look how much the fanotify group has queued: %w", err))
	}
	if queued > maxQueued || g.latePauses > maxLate {
		return 0, g.discard(errTooMany)
	}
	b := batch{opened: make(map[*watch]map[string]bool)}
	var slow error
	for b.events < queued && err == nil && slow == nil {
		select {
		case <-late:
			slow = errSlow
			continue
		default:
		}
		var n int
		if n, err = unix.Read(fd, g.buffer); errors.Is(err, unix.EAGAIN) {
			err = nil
			break
		}
		if err == nil {
			err = g.take(&b, g.buffer[:n])
		}
	}
	for w, files := range b.opened {
		ids := make([]string, 0, len(files))
		for id := range files {
			ids = append(ids, id)
		}
		w.opened(ids)
	}
	if err != nil {
		return b.events, g.discard(fmt.Errorf("read the fanotify group: %w", err))
	}
	if b.lost {
		g.overflow()
	}
	if slow == nil {
		g.reads.Add(1)
	}
	return b.events, slow
}

// take adds the events of a buffer to a batch, and ends the noisiest watch when there are too many.
func (g *Group) take(b *batch, buf []byte) error {
	for len(buf) > 0 {
		e, rest, err := next(buf)
		if err != nil {
			return err
		}
		buf = rest
		b.events++
		b.lost = b.lost || e.lost()
		g.note(b, e)
	}
	for g.total > g.most {
		g.quiet(b)
	}
	return nil
}

// note adds an event to what was opened. The event of a file system that is not watched any more is late.
func (g *Group) note(b *batch, e event) {
	if e.mask&unix.FAN_OPEN == 0 || len(e.file) == 0 {
		return
	}
	g.mu.Lock()
	w := g.watches[string(e.fs)]
	g.mu.Unlock()
	switch {
	case e.pid == g.pid:
		return
	case w == nil:
		g.late++
		return
	}
	g.counts[w]++
	g.total++
	if b.opened[w] == nil {
		b.opened[w] = make(map[string]bool)
	}
	b.opened[w][string(e.file)] = true
}

// quiet ends the noisiest watch. What comes of it is late from then on.
func (g *Group) quiet(b *batch) {
	var noisiest *watch
	for w, n := range g.counts {
		if noisiest == nil || n > g.counts[noisiest] {
			noisiest = w
		}
	}
	g.total -= g.counts[noisiest]
	delete(g.counts, noisiest)
	delete(b.opened, noisiest)
	g.stop(noisiest)
	noisiest.lost(ErrNoisy)
}

// discard ends the group, with all that is queued, and all watches, for a reason, which it returns. The caller holds reading.
func (g *Group) discard(why error) error {
	g.mu.Lock()
	all := slices.Collect(maps.Values(g.watches))
	clear(g.watches)
	why = errors.Join(why, g.end())
	g.latePauses = 0
	g.mu.Unlock()
	for _, w := range all {
		w.lost(why)
	}
	return why
}
