package manager

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/requests"
)

// run brings the states of an item, until stop. It is a watcher or a poller. The lock of the item is held during all calls, and none of them
// blocks. It takes away nothing that is known.
type run interface {
	// request requests the state, after this call.
	request()
	// refresh requests the state if that is how changes are found, and if it is due.
	refresh()
	// readAgain requests the state, unless refresh does that or a watch brings it.
	readAgain()
	// hurry ends a pause, unless the API server asked for it, because a publish waits.
	hurry()
	// stop ends the run. What it still brings is ignored.
	stop()
	// follows reports whether changes are looked for, and whether they are known to arrive. An object that cannot change is not followed.
	follows() (follows, works bool)
}

// newRun returns a run that has requested nothing yet. The caller holds the lock of the item.
func newRun(it *item) run {
	t := tries{item: it, pauses: newPauses(), cancel: func() {}}
	if it.m.detection == Watch {
		return &watcher{tries: t, over: true}
	}
	return &poller{tries: t}
}

// reflectorPause is the shortest first pause of client-go's reflectors. Without a publish that waits, no pause is shorter: an API server that
// has just started must not get more requests at once from a node than it would get from reflectors.
const reflectorPause = 800 * time.Millisecond

// newPauses returns the pauses of one object after watches or failed requests: from 0.25 s to 15 s, plus up to as much jitter.
func newPauses() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 15 * time.Second}
}

// tries are the requests that a run sends one after the other. The lock of the item guards pauses, wake and isHurried.
type tries struct {
	item *item
	// cancel stops the goroutine.
	cancel context.CancelFunc
	// pauses is the back-off of the object.
	pauses wait.Backoff
	// wake ends the pause; nil if none is running. isHurried means that the next pause is skipped.
	wake      context.CancelFunc
	isHurried bool
}

func (t *tries) stop() { t.cancel() }

// start runs do in a goroutine of the manager. Its context ends when the run is stopped. The caller holds the lock of the item.
func (t *tries) start(do func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(clientlog.Context(context.Background()))
	t.cancel = cancel
	t.item.m.running.Go(func() {
		defer cancel()
		do(ctx)
	})
}

func (t *tries) hurry() {
	t.isHurried = true
	if t.wake != nil {
		t.wake()
	}
}

// beginLocked records the start of a try, and returns its context. The caller holds the lock of the item.
func (t *tries) beginLocked(ctx context.Context) context.Context {
	publishes := t.item.demand.publishes
	t.item.state.begin()
	t.isHurried = false
	return requests.With(ctx, requests.Meta{Account: t.item.account, Urgent: !publishes.IsEmpty(), For: publishes})
}

// whole returns a context for a request whose answer is read at once. Few of them are in memory at the same time.
func whole(ctx context.Context) context.Context {
	m := requests.MetaOf(ctx)
	m.Whole = true
	return requests.With(ctx, m)
}

// sleep waits before the next request. err says why the last one failed, or is nil if a watch has ended. If the account's requests wait
// anyway, there is no pause. calm means that pauses are short again.
func (t *tries) sleep(ctx context.Context, err error, calm bool) {
	it, asked := t.item, requests.RetryAfter(err)
	it.mu.Lock()
	if calm {
		t.pauses = newPauses()
	}
	pause := t.pauses.Step()
	if it.demand.publishes.IsEmpty() {
		pause = max(pause, wait.Jitter(reflectorPause, 1))
	}
	_, waits := it.m.requests.Err(it.account)
	switch {
	case err != nil && waits != nil: // the gate decides when requests go on
		pause, asked = 0, 0
	case t.isHurried && asked == 0:
		pause = 0
	}
	ctx, cancel := context.WithTimeout(ctx, pause+asked)
	defer cancel()
	if asked == 0 {
		t.wake = cancel
	}
	it.mu.Unlock()
	<-ctx.Done()
	it.mu.Lock()
	defer it.mu.Unlock()
	t.wake = nil
}
