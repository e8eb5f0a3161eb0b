package publisher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Retries of an errand start at errandMin and double up to errandMax, with jitter of half as
// much either way, so that a volume is current within 10 s of an outage's end. What another
// try at once can't mend waits for a resync.
const (
	errandMin = time.Second
	errandMax = 4 * time.Second
	// errandTime bounds one try: its place is wanted by other volumes.
	errandTime = 15 * time.Second
)

// errand is a question to the API server that the next write of a live volume depends on.
// The lock of the contents guards it.
type errand struct {
	// running says that a goroutine asks, and again that it is to ask once more, at once,
	// should it fail: what it lacked may have come since it began.
	running, again bool
	// err is why the last try failed, and retryAt when the next one may be.
	err     error
	retryAt time.Time
	delay   time.Duration
}

// later runs an errand of a live volume without the worker and the lock of the contents,
// which the caller holds: a slow API server must hold up neither the other volumes nor this
// one's unpublish. What ask returns is called with that lock, unless the volume has gone,
// and says how it went; the volume is queued again after that. The result is errPutOff, or
// until the next try may be, why the last one failed: failure and the cause.
func (p *Publisher) later(ctx context.Context, v *published, e *errand, failure error, ask func(context.Context) (apply func() error)) error {
	if e.running {
		return errPutOff
	}
	if wait := time.Until(e.retryAt); wait > 0 {
		// The queue keeps but the next time of an id, which was this one's.
		p.queue.AddAfter(v.request.VolumeID, wait)
		return e.err
	}
	e.running = true
	p.errands.Go(func() {
		select {
		case p.asking <- struct{}{}:
			defer func() { <-p.asking }()
		case <-ctx.Done():
			return
		}
		apply := p.ask(ctx, v, ask)
		v.contents.mu.Lock()
		defer v.contents.mu.Unlock()
		e.running = false
		if v.contents.gone {
			return
		}
		if err := apply(); err != nil {
			p.tryAgain(v, e, fmt.Errorf("%w: %w", failure, err))
			if e.again {
				e.again, e.retryAt = false, time.Time{}
			}
		} else {
			*e = errand{}
		}
		p.queue.Add(v.request.VolumeID)
	})
	return errPutOff
}

// ask calls ask with a bound on its time. A panic is a failed try.
func (p *Publisher) ask(ctx context.Context, v *published, ask func(context.Context) (apply func() error)) (apply func() error) {
	ctx, cancel := context.WithTimeout(ctx, errandTime)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			logPanic(ctx, v.request.VolumeID, cause)
			apply = func() error { return fail(ReasonUnavailable, "%w", errPanicked) }
		}
	}()
	return ask(ctx)
}

// tryAgain says when an errand that failed is run again. The caller holds the lock of the
// contents.
func (p *Publisher) tryAgain(v *published, e *errand, err error) {
	e.err = err
	if ReasonOf(err) != ReasonUnavailable {
		e.retryAt = time.Now().Add(p.opts.ResyncInterval)
		return
	}
	e.delay = min(max(2*e.delay, errandMin), errandMax)
	wait := e.delay/2 + rand.N(e.delay)
	e.retryAt = time.Now().Add(wait)
	p.queue.AddAfter(v.request.VolumeID, wait)
}
