package publisher

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
)

// table finds volumes by ID, by object and by pod. It is safe for concurrent use.
//
// Its lock, mu, guards its fields, and the fields of entries and workers that say so. It is never held during a system call or while a lock
// of another package is taken, except that of a Room.
type table struct {
	kubeletDir string
	// room counts what the volumes hold and name.
	room *room.Room
	// logLimit limits what is logged about each pod.
	logLimit *loglimit.Limiter
	// newVolume returns the worker's part of a volume. It is called with mu held.
	newVolume func(*entry) reconciler

	mu sync.Mutex
	// start runs a worker in a goroutine. It is nil before Run and after Run has ended.
	start   func(*worker)
	entries map[string]*entry
	byRef   map[volume.Ref]map[*entry]struct{}
	workers map[types.UID]*worker
	// measuredAt is when all volumes were last measured because the node was full.
	measuredAt time.Time
}

// phase is a volume's phase of life. Once the volume is in the table, only the worker changes it.
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

// entry is the part of a volume that calls and worker share.
type entry struct {
	table      *table
	id, target string
	// since is when this process started with the volume.
	since  time.Time
	worker *worker
	// vol is used only by the worker.
	vol reconciler
	// room has what the volume holds and names.
	room *room.Volume

	// table.mu guards the fields below. Only the worker sets phase and report, so it may read them without the lock.
	//
	// wanted is what the calls want of the volume.
	wanted wanted
	phase  phase
	// due is when the next reconcile is due; zero for never.
	due time.Time
	// failure says why the volume is not in the wanted state.
	failure  *failure
	unmounts unmounts
	// rounds counts the reconciles that have started.
	rounds int
	// changed is closed at the next change of the fields above. It is nil until a call waits for it.
	changed chan struct{}
	// changedAt is when the first change came that no reconcile has processed; zero for none.
	changedAt time.Time
	report    report
}

// unmounts counts the tries to unmount a volume. last is the error of the last try.
type unmounts struct {
	tries int
	last  error
}

// wanted is what the calls want of a volume.
type wanted struct {
	// request is nil for a mounted volume of an earlier process until the request is known.
	request *Request
	// waits means that a publish waits. A volume that is not mounted exists only while a publish waits.
	waits bool
	// going means that an unpublish waits for the unmount. It ends when the volume is unmounted, or when that fails.
	going bool
	// lost means that a publish found no mount, so the worker must examine the target again.
	lost bool
	// measure means that the node is full, so the volume must be measured again.
	measure bool
}

// worker reconciles the volumes of a pod, one after another. It exists as long as the pod has volumes, and has a goroutine only while one of
// them is due: most pods rest most of the time, and a stack for each costs more memory than all else that a volume needs. table.mu guards its
// fields.
type worker struct {
	table *table
	uid   types.UID
	all   map[*entry]struct{}
	// running means that the goroutine exists. timer starts it when the first volume is due; it is set only while the worker rests.
	running bool
	timer   *time.Timer
	// current is the volume that is being reconciled, and cancel cancels that.
	current *entry
	cancel  context.CancelCauseFunc
	// news is used only by the goroutine, without mu.
	news news
}

// snapshot is what a reconcile reads from the entry when it starts. Later changes make the volume due again.
type snapshot struct {
	wanted
	// changedAt is when the first change came that no reconcile has processed; zero for none.
	changedAt time.Time
}

// result is the result of a reconcile: its request, when the volume is due again, and why it is not in the wanted state.
type result struct {
	request *Request
	again   time.Time
	failure *failure
	// partial is answers.isPartial: this result is not reported, because another reconcile comes with the next answer.
	partial bool
}

// reconciler is the worker's part of a volume. Only the worker calls its methods, except opensLost, which any goroutine may call.
type reconciler interface {
	// reconcile brings the volume to its wanted state.
	reconcile(ctx context.Context, now snapshot) result
	// retryAt returns when a failed reconcile is retried, or zero for never. table.mu is held.
	retryAt(f *failure) time.Time
	// reportNews has the worker log a volume's new state, and reports failures to the pod's author. nil means success.
	reportNews(ctx context.Context, f *failure)
	// makeRoom removes what is kept for readers.
	makeRoom(ctx context.Context)
	// doubt makes the next reconcile examine everything again.
	doubt()
	// close saves what the next process needs, when this one ends.
	close(ctx context.Context)
	// opensLost notes that opens of files may have been missed.
	opensLost()
}

// add adds a new volume to the table, under its ID or another key. The caller holds mu.
func (t *table) add(key, id, target string) *entry {
	e := &entry{table: t, id: id, target: target, since: time.Now()}
	uid := types.UID(podUID(t.kubeletDir, target))
	w := t.workers[uid]
	if w == nil {
		w = &worker{table: t, uid: uid, all: map[*entry]struct{}{}}
		w.timer = time.AfterFunc(time.Hour, w.wake)
		w.timer.Stop()
		t.workers[uid] = w
	}
	e.worker, e.room = w, t.room.Add(uid)
	w.all[e] = struct{}{}
	t.entries[key] = e
	e.vol = t.newVolume(e)
	return e
}

// remove undoes add. The caller holds mu. A worker goes with its last volume, and a volume that is added later gets a new worker.
func (e *entry) remove() {
	t, w := e.table, e.worker
	for _, key := range []string{e.id, leftoverKey(e.id, e.target)} {
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

// removeIf removes a volume if decide returns true. decide is called with mu held. The waiting calls are woken in any case.
func (e *entry) removeIf(decide func() bool) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	if decide() {
		e.remove()
	}
	e.notify()
}

// leftoverKey is the key in the table for an unpublish at a target that is not the volume's.
func leftoverKey(id, target string) string { return id + "@" + target }

// follow makes changes of objects wake a volume.
func (e *entry) follow(refs []volume.Ref) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	for _, ref := range refs {
		if e.table.byRef[ref] == nil {
			e.table.byRef[ref] = map[*entry]struct{}{}
		}
		e.table.byRef[ref][e] = struct{}{}
	}
}

// unfollow undoes follow.
func (e *entry) unfollow(refs []volume.Ref) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	for _, ref := range refs {
		if delete(e.table.byRef[ref], e); len(e.table.byRef[ref]) == 0 {
			delete(e.table.byRef, ref)
		}
	}
}

// objectChanged wakes the volumes of an account that name an object. With the zero account, it wakes all volumes that name it.
func (t *table) objectChanged(account volume.ServiceAccount, ref volume.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for e := range t.byRef[ref] {
		if account != (volume.ServiceAccount{}) && account != e.wanted.request.Pod.Account() {
			continue
		}
		if e.phase == mounted && e.changedAt.IsZero() {
			e.changedAt = now
		}
		e.wakeLocked(now)
	}
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

// all returns the volumes that are in the table now.
func (t *table) all() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e)
	}
	return all
}

// wake schedules a reconcile at a time, or keeps an earlier one.
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

// set makes a change while it holds mu, and wakes the waiting calls.
func (e *entry) set(change func()) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	change()
	e.notify()
}

// isMounted reports whether the volume is visible. Only the worker may call it.
func (e *entry) isMounted() bool { return e.phase == mounted }

// siblings returns all volumes of the pod.
func (e *entry) siblings() []*entry {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return slices.Collect(maps.Keys(e.worker.all))
}

// measureAll has all volumes measured again that hold more than their files need, because readers may have closed old files. The volumes
// that it wakes may find the node full and call it too, so it runs at most once in retryMax.
func (t *table) measureAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
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

// noteUnmount records how an unmount ended. The caller holds mu.
func (e *entry) noteUnmount(err error) {
	e.unmounts, e.wanted.going = unmounts{e.unmounts.tries + 1, err}, err == nil
}
