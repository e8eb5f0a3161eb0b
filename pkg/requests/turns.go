package requests

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Pods are the pods whose publishes wait for an answer. More may be added while the request waits for its turn. It is safe for concurrent
// use. Its lock is taken before that of turns.
type Pods struct {
	mu   sync.Mutex
	uids []types.UID
	// added is called for each pod while a request waits for its turn; nil otherwise.
	added func(types.UID)
}

// For returns Pods with one pod.
func For(uid types.UID) *Pods { return &Pods{uids: []types.UID{uid}} }

// Add adds a pod. It is idempotent.
func (p *Pods) Add(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.uids, uid) {
		return
	}
	p.uids = append(p.uids, uid)
	if p.added != nil {
		p.added(uid)
	}
}

// Remove removes a pod, which waits no more.
func (p *Pods) Remove(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uids = slices.DeleteFunc(p.uids, func(of types.UID) bool { return of == uid })
}

// IsEmpty reports whether no publish waits.
func (p *Pods) IsEmpty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.uids) == 0
}

// Clear removes all pods: there is an answer.
func (p *Pods) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uids = nil
}

// join calls add for each pod, now and when more are added, until leave is called.
func (p *Pods) join(add func(types.UID)) (leave func()) {
	if p == nil {
		add("")
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, uid := range p.uids {
		add(uid)
	}
	if len(p.uids) == 0 {
		add("")
	}
	p.added = add
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.added = nil
	}
}

// turns gives slots to waiting requests. Each pod has a line, and all requests for which no publish waits have one together. The lines take
// turns, so a pod that needs a thousand objects delays another pod by one of its requests at a time. It is safe for concurrent use; mu guards
// its fields.
type turns struct {
	mu sync.Mutex
	// free is the number of free slots. ordinary is how many of them requests may take for which no publish waits.
	free, ordinary int
	// lines has the lines that may have waiting requests, the one whose turn it is first.
	lines []*line
}

// line is the waiting requests of one pod, in order, or the ordinary ones. A request of several pods waits in several lines.
type line struct {
	isOrdinary bool
	uid        types.UID
	waiting    []*ticket
}

// ticket is one request. turns.mu guards isDone, which means that it has its slot or waits no more.
type ticket struct {
	isDone bool
	ready  chan struct{}
}

// take waits for a slot. pods is used for urgent requests, and may be nil. The error is the cause of ctx. release must be called once.
func (t *turns) take(ctx context.Context, urgent bool, pods *Pods) (release func(), err error) {
	x := &ticket{ready: make(chan struct{})}
	leave := func() {}
	if urgent {
		leave = pods.join(func(uid types.UID) { t.enqueue(line{uid: uid}, x) })
	} else {
		t.enqueue(line{isOrdinary: true}, x)
	}
	defer leave()
	select {
	case <-x.ready:
	case <-ctx.Done():
		if t.giveUp(x) {
			return nil, context.Cause(ctx)
		}
	}
	return func() { t.release(urgent) }, nil
}

// enqueue appends a request to a line.
func (t *turns) enqueue(to line, x *ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.isDone {
		return
	}
	i := slices.IndexFunc(t.lines, func(l *line) bool { return l.isOrdinary == to.isOrdinary && l.uid == to.uid })
	if i < 0 {
		i = len(t.lines)
		t.lines = append(t.lines, &to)
	}
	t.lines[i].waiting = append(t.lines[i].waiting, x)
	t.next()
}

// giveUp removes a request, and reports false if it has its slot already.
func (t *turns) giveUp(x *ticket) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := x.isDone
	x.isDone = true
	return !was
}

func (t *turns) release(urgent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if !urgent {
		t.ordinary++
	}
	t.next()
}

// next gives free slots to the lines in turn. The caller holds mu.
func (t *turns) next() {
	for i := 0; i < len(t.lines) && t.free > 0; {
		l := t.lines[i]
		for len(l.waiting) > 0 && l.waiting[0].isDone {
			l.waiting = l.waiting[1:]
		}
		switch {
		case len(l.waiting) == 0:
			t.lines = slices.Delete(t.lines, i, i+1)
		case l.isOrdinary && t.ordinary == 0:
			i++
		default:
			t.grant(l)
			t.lines = append(slices.Delete(t.lines, i, i+1), l) // its next turn comes after those of the others
			i = 0
		}
	}
}

// grant gives a slot to the first request of a line. The caller holds mu.
func (t *turns) grant(l *line) {
	x := l.waiting[0]
	l.waiting = l.waiting[1:]
	t.free--
	if l.isOrdinary {
		t.ordinary--
	}
	x.isDone = true
	close(x.ready)
}
