package publisher

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
)

// table has the volumes by ID, by object and by pod, and a worker for each pod. It is safe for concurrent use.
//
// Its lock, mu, guards its fields, and those of entries and workers that say so. It is never held during a system call or while a lock of
// another package is taken, except that of a Room.
type table struct {
	node *node
	// room counts what the volumes hold and name.
	room *room.Room

	mu sync.Mutex
	// start runs a worker in a goroutine. It is nil before Run and after Run has ended.
	start   func(*worker)
	entries map[string]*entry
	byRef   map[volume.Ref]map[*entry]struct{}
	workers map[types.UID]*worker
	// measuredAt is when all volumes were last measured because the node was full.
	measuredAt time.Time
}

func newTable(n *node, space *room.Room) *table {
	return &table{
		node: n, room: space,
		entries: map[string]*entry{}, byRef: map[volume.Ref]map[*entry]struct{}{}, workers: map[types.UID]*worker{},
	}
}

// phase is what the calls know of a volume's life. Once the volume is in the table, only its worker changes it.
//
//	     Publish             attach                  unmount
//	────► absent ──► attaching ──► mounted ────────────────► removed
//	        │            │            ▲  │ lost: somebody         ▲
//	        │            └─ failed    │  │ else unmounted it      │
//	        │                         │  ▼                        │
//	        │          Restore ───────┘ absent                    │
//	        └─ nobody waits ──────────────────────────────────────┘
type phase int

const (
	// absent: nothing is visible.
	absent phase = iota
	// attaching: the volume is being made visible, and that may still fail.
	attaching
	// mounted: the volume is visible, as far as this process knows.
	mounted
	// removed: the volume is no longer in the table.
	removed
)

// entry is what the table knows of a volume.
type entry struct {
	binding.Place
	table  *table
	worker *worker
	// vol is used only by the worker.
	vol *vol
	// room has what the volume holds and names.
	room *room.Volume

	// table.mu guards the fields below.
	//
	// wanted is what the calls want of the volume, and state what the volume tells.
	wanted wanted
	state  state
	phase  phase
	// account and follows are the objects whose changes wake the volume.
	account volume.ServiceAccount
	follows []volume.Ref
	// changedAt is when the first change came that no reconcile has processed; zero for none.
	changedAt time.Time
	progress
}

// progress is how far the worker has come with a volume.
type progress struct {
	// due is when the next reconcile is due; zero for never.
	due time.Time
	// rounds counts the reconciles that have started.
	rounds int
	// awaited are the objects of which the first answer was due at the last reconcile, and has not come since. It is nil during one.
	awaited map[volume.Ref]bool
	// failures say why the volume is not in the wanted state.
	failures failure.List
	// unmounts counts the tries to unmount the volume. unmountErr is the error of the last one.
	unmounts   int
	unmountErr error
	// changed is closed at the next change of the entry. It is nil until a call waits for it.
	changed chan struct{}
}

// worker reconciles the volumes of a pod, one after another. It exists as long as the pod has volumes, and has a goroutine only while one of
// them is due: most pods rest most of the time, and a stack for each costs more memory than all else that a volume needs. table.mu guards its
// fields.
type worker struct {
	table *table
	uid   types.UID
	all   map[*entry]struct{}
	// isRunning means that the goroutine exists. timer starts it when the first volume is due; it is set only while the worker rests.
	isRunning bool
	timer     *time.Timer
	// current is the volume that is being reconciled, and cancel cancels that.
	current *entry
	cancel  context.CancelCauseFunc
	// news is used only by the goroutine, without mu.
	news news
}

func newWorker(t *table, uid types.UID) *worker {
	w := &worker{table: t, uid: uid, all: map[*entry]struct{}{}}
	w.timer = time.AfterFunc(time.Hour, w.wake)
	w.timer.Stop()
	return w
}

// add adds a volume to the table, under its ID or another key. isMounted means that an earlier process has mounted it. The caller holds mu.
func (t *table) add(key, id, target string, isMounted bool) *entry {
	uid, name, _ := volume.ParseTarget(t.node.opts.KubeletDir, target)
	w := t.workers[uid]
	if w == nil {
		w = newWorker(t, uid)
		t.workers[uid] = w
	}
	e := &entry{Place: binding.Place{ID: id, Target: target, UID: uid, Name: name, Since: time.Now()}, table: t, worker: w, room: t.room.Add(w.uid)}
	e.vol = newVolume(t.node, e.Place, host{wake: e.wake, follow: e.follow, tell: e.tell, mayAttach: e.mayAttach, makeRoom: w.makeRoom}, e.room)
	if e.vol.isMounted = isMounted; isMounted {
		e.phase = mounted
	}
	e.state = e.vol.report.state(isMounted)
	w.all[e] = struct{}{}
	t.entries[key] = e
	return e
}

// remove undoes add. The caller holds mu. A worker goes with its last volume, and a volume that is added later gets a new worker.
func (e *entry) remove() {
	t, w := e.table, e.worker
	for _, key := range []string{e.ID, leftoverKey(e.ID, e.Target)} {
		if t.entries[key] == e {
			delete(t.entries, key)
		}
	}
	e.room.Remove()
	e.phase = removed
	e.due = time.Time{}
	if delete(w.all, e); len(w.all) == 0 {
		delete(t.workers, w.uid)
		w.timer.Stop()
	}
	e.notify()
}

// leftoverKey is the key in the table for an unpublish at a target that is not the volume's.
func leftoverKey(id, target string) string { return id + "@" + target }

// objectChanged wakes the volumes of an account that name an object. With the zero account, it wakes all volumes that name it.
func (t *table) objectChanged(account volume.ServiceAccount, ref volume.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for e := range t.byRef[ref] {
		if account != (volume.ServiceAccount{}) && account != e.account {
			continue
		}
		if e.phase == mounted && e.changedAt.IsZero() {
			e.changedAt = now
		}
		e.wakeLocked(e.arrived(ref, now))
	}
}

// gatherTime is how long a volume waits for the other objects of which the first answer is due. Otherwise each of many would bring a reconcile.
const gatherTime = 50 * time.Millisecond

// arrived notes the first answer about an object, and returns when the volume is due for it. The caller holds mu.
func (e *entry) arrived(ref volume.Ref, now time.Time) time.Time {
	if !e.awaited[ref] {
		return now
	}
	if delete(e.awaited, ref); len(e.awaited) == 0 {
		return now
	}
	return now.Add(gatherTime)
}

// podChanged wakes the volumes of a pod.
func (t *table) podChanged(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[uid]; w != nil {
		for e := range w.all {
			e.wakeLocked(time.Now())
		}
	}
}

// measureAll has all volumes measured again that hold more than their files need, because readers may have closed old files. The volumes
// that it wakes may find the node full and call it too, so it runs at most once in retryMax. The caller holds mu.
func (t *table) measureAll() {
	now := time.Now()
	if now.Sub(t.measuredAt) < retryMax {
		return
	}
	t.measuredAt = now
	for _, e := range t.entries {
		if e.room.HoldsOld() {
			e.wanted.measure = true
			e.wakeLocked(now)
		}
	}
}

// all returns the volumes that are in the table now.
func (t *table) all() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.entries))
}

// follow is host.follow.
func (e *entry) follow(account volume.ServiceAccount, refs []volume.Ref) {
	byRef := e.table.byRef
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	for _, ref := range e.follows {
		if delete(byRef[ref], e); len(byRef[ref]) == 0 {
			delete(byRef, ref)
		}
	}
	for _, ref := range refs {
		if byRef[ref] == nil {
			byRef[ref] = map[*entry]struct{}{}
		}
		byRef[ref][e] = struct{}{}
	}
	e.account, e.follows = account, refs
}

// tell is host.tell.
func (e *entry) tell(now state) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	e.tellLocked(now)
}

// tellLocked is tell for a caller that holds mu.
func (e *entry) tellLocked(now state) {
	if e.state, e.phase = now, absent; now.isMounted {
		e.phase = mounted
	}
	e.notify()
}

// mayAttach is host.mayAttach.
func (e *entry) mayAttach() bool {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	if e.wanted.going || !e.wanted.waits {
		return false
	}
	e.phase = attaching
	return true
}

// wake is host.wake.
func (e *entry) wake(at time.Time) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	e.wakeLocked(at)
}

// wakeLocked is wake for a caller that holds mu.
func (e *entry) wakeLocked(at time.Time) {
	if e.phase == removed || !e.due.IsZero() && !at.Before(e.due) {
		return
	}
	e.due = at
	e.worker.schedule()
}

// notify wakes the waiting calls. The caller holds mu.
func (e *entry) notify() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// nextChange returns a channel that is closed at the next change. The caller holds mu.
func (e *entry) nextChange() <-chan struct{} {
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// begin starts the worker's goroutine, unless it is running or no worker may run. The caller holds mu.
func (w *worker) begin() {
	if w.table.start == nil || w.isRunning {
		return
	}
	w.isRunning = true
	w.timer.Stop()
	w.table.start(w)
}

// wake is begin for a caller that doesn't hold mu.
func (w *worker) wake() {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.begin()
}

// schedule has a resting worker run when its first volume is due. The caller holds mu.
func (w *worker) schedule() {
	if w.table.start == nil || w.isRunning {
		return
	}
	first := w.first()
	if first == nil {
		w.timer.Stop()
		return
	}
	if wait := time.Until(first.due); wait > 0 {
		w.timer.Reset(wait)
	} else {
		w.begin()
	}
}

// first returns the volume that is due first, or nil if none will be due. The caller holds mu.
func (w *worker) first() *entry {
	var first *entry
	for e := range w.all {
		if !e.due.IsZero() && (first == nil || e.due.Before(first.due)) {
			first = e
		}
	}
	return first
}

// volumes returns the pod's volumes.
func (w *worker) volumes() []*entry {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return slices.Collect(maps.Keys(w.all))
}

// makeRoom is host.makeRoom.
func (w *worker) makeRoom(ctx context.Context) {
	for _, e := range w.volumes() {
		e.vol.makeRoom(ctx)
	}
}
