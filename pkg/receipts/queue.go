package receipts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Run reports opens until ctx ends. An error ends all watches. Their callers are notified and may watch again.
func (g *Group) Run(ctx context.Context) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	defer g.setSleeper()()
	for empty := 0; ; timer.Reset(pause) {
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
		if empty > maxEmpty {
			g.sleep(ctx)
		}
	}
}

// errSlow says that a Drain did not report everything in time.
var errSlow = errors.New("the opens that are queued can't be read in time")

// Drain reports all opens so far before it returns. So everything that is reported later was opened later. After a rewrite in place, Drain
// shows which opens may have read the old content. It fails if it takes longer than within.
func (g *Group) Drain(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	_, err := g.read(false, timer.C)
	return err
}

// Position is a position in the queue of opens. HasReported alone knows what its value means. The zero Position is before no open.
type Position uint64

// position returns the end of the queue. What is in it now is reported when there are two more reads, because the next one to end may have
// begun earlier.
func (g *Group) position() Position { return Position(g.reads.Load()) + 2 }

// HasReported returns whether all opens before a position have been reported. Of the zero Position this is never known.
func (g *Group) HasReported(before Position) bool {
	return before != 0 && Position(g.reads.Load()) >= before
}

// batch is the result of one read.
type batch struct {
	opened map[*watch]map[string]bool
	lost   bool
	events int
}

// read takes the queued events, reports them, and returns their number. It leaves events that arrive meanwhile to the next read, so that it
// always ends. The next read starts when everything is reported. anew means that a new pause interval starts. It gives up with errSlow
// after late.
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
	case fd == noDescriptor:
		return 0, nil
	}
	queued, err := unix.IoctlGetInt(fd, unix.TIOCINQ) // this counts only an event's metadata, whatever else it has
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

// take adds the events of a buffer to a batch. If there are too many, it ends watches until the rest fits.
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

// note adds an event to the batch. An event of a file system that is not watched any more is counted as late.
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
	of := g.counts[w.owner]
	if of == nil {
		of = &count{watches: make(map[*watch]int)}
		g.counts[w.owner] = of
	}
	of.watches[w]++
	of.total++
	g.total++
	if b.opened[w] == nil {
		b.opened[w] = make(map[string]bool)
	}
	b.opened[w][string(e.file)] = true
}

// quiet ends the noisiest watch of the noisiest owner. Its events are late from then on.
func (g *Group) quiet(b *batch) {
	owner := slices.MaxFunc(slices.Collect(maps.Values(g.counts)), func(x, y *count) int { return cmp.Compare(x.total, y.total) })
	noisiest := slices.MaxFunc(slices.Collect(maps.Keys(owner.watches)), func(x, y *watch) int {
		return cmp.Compare(owner.watches[x], owner.watches[y])
	})
	g.total -= owner.watches[noisiest]
	owner.total -= owner.watches[noisiest]
	delete(owner.watches, noisiest)
	delete(b.opened, noisiest)
	g.stop(noisiest)
	noisiest.lost(ErrNoisy)
}

// discard closes the group with its queue and ends all watches. It returns the reason. The caller holds reading.
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
