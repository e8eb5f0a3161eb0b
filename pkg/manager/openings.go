package manager

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// maxOpening is how many openings of one kind of object may be under way. Without a
	// bound, the transport makes a TLS handshake for each request that finds no free
	// HTTP/2 stream: 1,000 for a node of 1,000 objects.
	maxOpening = 16
	// hangTime is how long an opening has no answer before it counts as hanging, and no longer
	// against maxOpening. At most maxHanging openings hang.
	hangTime   = 2 * time.Second
	maxHanging = 64
	// urgentTime is how long an opening has no answer before it makes room for a waiting
	// publish of a pod that has nothing under way. It is a multiple of the time that a busy
	// API server takes.
	urgentTime = 500 * time.Millisecond
)

// errMadeRoom is why an opening ends that hangs while another pod's publish waits.
var errMadeRoom = errors.New("no answer, and other requests wait")

// openings decides when a request is sent that opens a watch or asks for an object's state. An
// opening lasts from begin to the headers of the answer, that of a watch which begins with the state to its first
// event, or until the item has a large object.
//
//   - At most maxOpening of each kind are under way. A hanging one gives up its slot.
//   - The pods take turns. The openings of a waiting publish come before all others. No pod's
//     author can delay another pod by many references, nor by objects for which the server
//     has no answer.
//   - While a scope backs off (see scopes), one opening probes, and the others wait.
//
// It has no goroutine of its own: begin, end and timers start those that wait. mu guards
// everything, the candidates and the openings too. It is taken after the lock of an object.
type openings struct {
	mu     sync.Mutex
	queues map[volume.Kind]*kindQueue
	scopes scopes
	// refusals is nil unless they pass.
	refusals refusals
	// turns counts the openings that began.
	turns int
}

// candidate is what openings knows of one object.
type candidate struct {
	volume.Ref
	account volume.Account
	// pod is the pod in whose turn the object is opened: the one that referenced it first, or
	// one whose publish waits for it.
	pod types.UID
	// publish says that a publish waits for the object.
	publish bool
	// waiting is the object's opening while it waits.
	waiting *opening
	// refusal is the last refusal of an object that is in the refusals, else nil. closed says
	// that it may not be there.
	refusal error
	closed  bool
	// shares is called, without a lock, with a failure of any request that concerns this
	// object too.
	shares func(error)
}

// opening is one request that waits to be sent, or was sent and has no answer yet.
type opening struct {
	openings  *openings
	candidate *candidate
	// pod is the pod whose turn it took.
	pod   types.UID
	began time.Time
	// number is the position in the order in which openings of a kind began to wait.
	number int
	// ready is closed when it may begin.
	ready chan struct{}
	// cancel ends the request.
	cancel context.CancelCauseFunc
	// timer fires when the opening has lasted for urgentTime, and again for hangTime.
	timer *time.Timer
	hangs bool
	// probes holds the pauses that its success ends.
	probes []*pause
}

// newOpenings returns openings of nothing. refusalsPass is that of Options.
func newOpenings(refusalsPass bool) *openings {
	o := &openings{queues: map[volume.Kind]*kindQueue{}, scopes: scopes{}}
	if refusalsPass {
		o.refusals = refusals{}
	}
	return o
}

// begin waits for the turn of p, or for the end of ctx, whose cause it then returns. The caller
// sends one request and calls end. cancel must end that request only.
func (o *openings) begin(ctx context.Context, p *candidate, cancel context.CancelCauseFunc) (*opening, error) {
	op := &opening{openings: o, candidate: p, ready: make(chan struct{}), cancel: cancel}
	o.mu.Lock()
	o.enqueue(op)
	o.serveIf(p)
	o.mu.Unlock()
	select {
	case <-op.ready:
		return op, nil
	case <-ctx.Done():
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.waiting == op {
		o.dequeue(op)
		o.serveIf(p)
	} else {
		o.finish(op)
		o.serve()
	}
	return nil, context.Cause(ctx)
}

// end records that the headers of the answer have come, or why they haven't.
func (op *opening) end(err error) {
	o := op.openings
	o.mu.Lock()
	o.finish(op)
	if err == nil || isAbsent(err) {
		op.candidate.publish = false
	}
	failed := o.learn(op, err)
	all := o.sharing(op.candidate, failed)
	o.serve()
	o.mu.Unlock()
	for _, p := range all {
		p.shares(toldOf(err))
	}
}

// sharing returns the candidates that a failure of p concerns: p and those that wait.
func (o *openings) sharing(p *candidate, failed backoff.Level) []*candidate {
	if failed == backoff.Object {
		return nil
	}
	all := []*candidate{p}
	for _, l := range o.queues {
		for _, q := range l.pods {
			for _, op := range slices.Concat(q.publish, q.others) {
				if slices.Contains(scopesOf(op.candidate), scopeOf(p, failed)) {
					all = append(all, op.candidate)
				}
			}
		}
	}
	return all
}

// report records that the answer failed after its headers.
func (op *opening) report(err error) {
	o := op.openings
	o.mu.Lock()
	defer o.mu.Unlock()
	o.learn(op, err)
}

// learn records the outcome of a request, and returns what a failure concerns. If a pause
// begins, it starts the waiting openings when that is over.
func (o *openings) learn(op *opening, err error) (failed backoff.Level) {
	failed = reach(err)
	in := scopeOf(op.candidate, refusedScope)
	switch refused := o.refusals.learn(op.candidate, err); {
	// A backoff stays until an answer comes, however few objects are left.
	case refused > fewRefused, refused > 0 && o.scopes[in] != nil:
		failed = refusedScope
	case err == nil, isAbsent(err):
		delete(o.scopes, in)
	}
	if wait := o.scopes.learn(op, err, failed); wait > 0 {
		time.AfterFunc(wait, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.serve()
		})
	}
	return failed
}

// prioritize records that a publish of a pod waits for p.
func (o *openings) prioritize(p *candidate, pod types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := p.waiting
	if op != nil {
		o.dequeue(op)
	}
	p.publish = true
	// The turn is that of the pod with fewer waiting openings: a reference to another pod's
	// object must not put that behind a thousand others.
	if queues := o.kindQueue(p.Kind).pods; queues[pod].waiting() < queues[p.pod].waiting() {
		p.pod = pod
	}
	if op != nil {
		o.enqueue(op)
		o.serveIf(p)
	}
}

// whyWaiting returns the failure because of which p waits, or nil. In place of a refusal of
// another object, which names that, it returns the last one of p.
func (o *openings) whyWaiting(p *candidate) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.scopes.cause(p); !apierrors.IsForbidden(err) {
		return err
	}
	return p.refusal
}

// isHeldUp tells whether an opening of p waits in a pause after failures.
func (o *openings) isHeldUp(p *candidate) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return p.waiting != nil && o.scopes.cause(p) != nil
}

// clearBackoff ends the backoff of an account's credential, since there is a new one.
func (o *openings) clearBackoff(account volume.Account) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.scopes, scope{level: backoff.Credential, account: account})
	o.serve()
}

func (o *openings) kindQueue(kind volume.Kind) *kindQueue {
	l := o.queues[kind]
	if l == nil {
		l = &kindQueue{pods: map[types.UID]*podQueue{}}
		o.queues[kind] = l
	}
	return l
}

func (o *openings) enqueue(op *opening) {
	p := op.candidate
	op.pod, p.waiting = p.pod, op
	l := o.kindQueue(p.Kind)
	l.numbered++
	op.number = l.numbered
	q := l.queue(op.pod)
	if p.publish {
		q.publish = append(q.publish, op)
	} else {
		q.others = append(q.others, op)
	}
}

func (o *openings) dequeue(op *opening) {
	op.candidate.waiting = nil
	l := o.kindQueue(op.candidate.Kind)
	q := l.pods[op.pod]
	isOp := func(other *opening) bool { return other == op }
	q.publish, q.others = slices.DeleteFunc(q.publish, isOp), slices.DeleteFunc(q.others, isOp)
	l.tidy(op.pod)
}

// serveIf does as serve, after a change to p's own opening: if p is in a pause, that changes nothing for the others.
// In an outage each object does this, and each serve looks at all that wait.
func (o *openings) serveIf(p *candidate) {
	if o.scopes.admit(p) {
		o.serve()
	}
}

// serve starts the openings whose turn has come.
//
// The kind that was served longest ago comes first: where only one opening may probe, the
// kinds take turns.
func (o *openings) serve() {
	inTurn := slices.SortedFunc(maps.Values(o.queues), func(a, b *kindQueue) int { return cmp.Compare(a.served, b.served) })
	for _, l := range inTurn {
		for {
			op := o.next(l)
			if op == nil || len(l.opening) >= maxOpening && !(l.isUrgent(op) && l.makeRoom()) {
				break
			}
			o.start(l, op)
		}
	}
}

// next returns the next opening, nil if none may begin now. Of those that would probe it
// takes the one that has waited longest, so that each time another one probes.
func (o *openings) next(l *kindQueue) *opening {
	var best *podQueue
	var probe *opening
	for _, q := range l.pods {
		op := q.admitted(o.scopes)
		switch {
		case op == nil:
		case o.scopes.cause(op.candidate) != nil:
			if oldest := q.oldest(o.scopes); probe == nil || oldest.number < probe.number {
				probe = oldest
			}
		case best == nil || q.before(best):
			best = q
		}
	}
	if best != nil {
		return best.admitted(o.scopes)
	}
	return probe
}

func (o *openings) start(l *kindQueue, op *opening) {
	o.dequeue(op)
	o.turns++
	q := l.queue(op.pod)
	l.served, q.served = o.turns, o.turns
	q.underWay++
	l.opening = append(l.opening, op)
	op.began = time.Now()
	o.scopes.probe(op)
	op.timer = time.AfterFunc(urgentTime, func() { o.lasts(op) })
	close(op.ready)
}

// lasts is called when an opening has lasted for urgentTime, and again for hangTime.
func (o *openings) lasts(op *opening) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op.timer == nil {
		return
	}
	if rest := hangTime - time.Since(op.began); rest > 0 {
		op.timer.Reset(rest)
	} else {
		op.hangs = true
		o.scopes.release(op) // another one may get an answer
		o.kindQueue(op.candidate.Kind).settle()
	}
	o.serve()
}

// finish takes an opening out of those under way. It is idempotent.
func (o *openings) finish(op *opening) {
	if op.timer == nil {
		return
	}
	op.timer.Stop()
	op.timer = nil
	o.scopes.release(op)
	l := o.kindQueue(op.candidate.Kind)
	l.remove(op)
	l.pods[op.pod].underWay--
	l.tidy(op.pod)
	l.settle()
}
