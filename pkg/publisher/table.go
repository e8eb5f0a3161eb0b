package publisher

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// table knows all volumes: by their ids, by the objects that they name, and by their pods. It is safe for concurrent use.
//
// Its one lock, mu, guards its fields and those of the entries and workers that say so. It is never held over a system call
// or over a lock of another package.
type table struct {
	kubeletDir string
	// newVolume makes what the worker knows of a volume. It is called with mu held.
	newVolume func(*entry) reconciler

	mu sync.Mutex
	// start starts the goroutine of a worker; nil before Run and after its end.
	start   func(*worker)
	entries map[string]*entry
	byRef   map[volume.Ref]map[*entry]struct{}
	workers map[types.UID]*worker
	// used is the bytes that all volumes hold, and measuredAt when all were last measured for want of room.
	used       int64
	measuredAt time.Time
}

// phase is where a volume is in its life. Only the worker changes it.
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
	// absent: nothing of it is visible.
	absent phase = iota
	// attaching: it is just becoming visible, or not.
	attaching
	// mounted: it is visible, as far as this process knows.
	mounted
	// removed: it is not in the table any more.
	removed
)

// entry is what the calls and the worker know together of a volume.
type entry struct {
	table      *table
	id, target string
	// since is when this process began with the volume.
	since  time.Time
	worker *worker
	// vol is the worker's own.
	vol reconciler

	// table.mu guards what follows. Only the worker sets phase, size, tree and report, so it reads them as they are.
	//
	// wanted is what the calls want of the volume.
	wanted wanted
	phase  phase
	// failure is why the volume does not show what is wanted.
	failure  *failure
	unmounts unmounts
	// rounds counts the reconciles that began.
	rounds int
	// changed is closed at each change of the above.
	changed chan struct{}
	memory  memory
	// changedAt is when the first change came that no reconcile has taken up; zero for none.
	changedAt time.Time
	report    report
}

// memory is what a volume takes, in bytes: size is what its file system holds, which table.used has, and tree what the files
// take that are shown.
type memory struct{ size, tree int64 }

// unmounts counts the tries to unmount a volume. last is the last one's error.
type unmounts struct {
	tries int
	last  error
}

// wanted is what the calls want of a volume.
type wanted struct {
	// request is nil for a volume that was found, as long as nobody knows what was asked for.
	request *Request
	// waits says that a publish waits. A volume that is not mounted lives as long as one does.
	waits bool
	// going says that an unpublish wants it away. That ends with the volume, or with an unmount that failed.
	going bool
	// lost says that a publish found no mount, so the worker is to look again.
	lost bool
	// measure says that the node is full, so what the volume holds is to be measured again.
	measure bool
}

// worker is the goroutine of a pod. It lives as long as the pod has volumes. table.mu guards its fields.
type worker struct {
	table *table
	uid   types.UID
	all   map[*entry]struct{}
	// due says when volumes are to be reconciled next.
	due map[*entry]time.Time
	// poke has room for one.
	poke chan struct{}
	// current is what is reconciled, and cancel ends that.
	current *entry
	cancel  context.CancelCauseFunc
}

// snapshot is what a reconcile takes from the calls at its begin. What comes later makes the volume due again.
type snapshot struct {
	wanted
	// changedAt is when the first change came that no reconcile has taken up; zero for none.
	changedAt time.Time
}

// result is that of a reconcile: what it was for, when the volume is due again, and why it does not show what it should.
type result struct {
	request *Request
	again   time.Time
	failure *failure
	// partial says that answers about rights were not all there yet: another reconcile comes with the last one.
	partial bool
}

// reconciler is what the worker knows of a volume. Only the worker calls its methods, but opensLost, which anybody may.
type reconciler interface {
	// reconcile brings the volume to what is wanted of it.
	reconcile(ctx context.Context, now snapshot) result
	// retryAt returns when a reconcile that has failed is due again, the zero time for never. table.mu is held.
	retryAt(f *failure) time.Time
	// reportNews logs what is wrong with the volume, nil for nothing, and says so to the pod's author.
	reportNews(ctx context.Context, f *failure)
	// makeRoom removes what is kept for readers.
	makeRoom(ctx context.Context)
	// doubt has everything looked at again.
	doubt()
	// close saves what the next process needs, as this one ends.
	close(ctx context.Context)
	// opensLost notes that opens of files may have been missed.
	opensLost()
}

// add puts a new volume into the table, below its id or another key. The caller holds mu.
func (t *table) add(key, id, target string) *entry {
	e := &entry{table: t, id: id, target: target, since: time.Now(), changed: make(chan struct{})}
	uid := types.UID(podUID(t.kubeletDir, target))
	w := t.workers[uid]
	if w == nil {
		w = &worker{table: t, uid: uid, all: map[*entry]struct{}{}, due: map[*entry]time.Time{}, poke: make(chan struct{}, 1)}
		t.workers[uid] = w
		if t.start != nil {
			t.start(w)
		}
	}
	e.worker = w
	w.all[e] = struct{}{}
	t.entries[key] = e
	e.vol = t.newVolume(e)
	return e
}

// remove undoes add. The caller holds mu and is the worker, which ends after its last volume: what is added later finds
// another one.
func (e *entry) remove() {
	t, w := e.table, e.worker
	for _, key := range []string{e.id, leftoverKey(e.id, e.target)} {
		if t.entries[key] == e {
			delete(t.entries, key)
		}
	}
	e.charge(0)
	e.phase = removed
	delete(w.due, e)
	if delete(w.all, e); len(w.all) == 0 {
		delete(t.workers, w.uid)
	}
	e.notify()
}

// leftoverKey is the place in the table of an unpublish at a target that is not the volume's.
func leftoverKey(id, target string) string { return id + "@" + target }

// follow has changes of objects wake a volume.
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

// objectChanged wakes the volumes that name an object, of an account or, with the zero Account, of all.
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

// all returns the volumes of this moment.
func (t *table) all() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e)
	}
	return all
}

// wake has a volume reconciled at a time, or earlier.
func (e *entry) wake(at time.Time) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	e.wakeLocked(at)
}

// wakeLocked is wake. The caller holds mu.
func (e *entry) wakeLocked(at time.Time) {
	w := e.worker
	if due, ok := w.due[e]; e.phase == removed || ok && !at.Before(due) {
		return
	}
	w.due[e] = at
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// notify wakes the calls that wait. The caller holds mu.
func (e *entry) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// set changes what mu guards, and wakes the calls that wait.
func (e *entry) set(change func()) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	change()
	e.notify()
}

// isMounted says whether the volume is visible. It is for the worker.
func (e *entry) isMounted() bool { return e.phase == mounted }

// charge counts what a volume holds. The caller holds mu.
func (e *entry) charge(size int64) {
	e.table.used += size - e.memory.size
	e.memory.size = size
}

// held returns what the pod's other volumes hold, and the node's.
func (e *entry) held() (pod, node int64) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	for other := range e.worker.all {
		pod += other.memory.size
	}
	return pod - e.memory.size, e.table.used - e.memory.size
}

// holdsOld says whether a volume holds much more than its files take: readers had old ones open when it was measured. Attributes
// of files take a little too. It is for the worker, or the caller holds mu.
func (e *entry) holdsOld() bool { return e.memory.size > e.memory.tree+e.memory.tree/4+64<<10 }

// siblings returns all volumes of the pod.
func (e *entry) siblings() []*entry {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return slices.Collect(maps.Keys(e.worker.all))
}

// measureAll has all volumes measured that hold more than their files take: what readers have closed counts no more. What it
// wakes may find the node full too, and call it: so it is for one call in retryMax.
func (t *table) measureAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.measuredAt) < retryMax {
		return
	}
	t.measuredAt = now
	for _, e := range t.entries {
		if e.holdsOld() {
			e.wanted.measure = true
			e.wakeLocked(now)
		}
	}
}

// noteUnmount notes how an unmount ended. The caller holds mu.
func (e *entry) noteUnmount(err error) {
	e.unmounts, e.wanted.going = unmounts{e.unmounts.tries + 1, err}, err == nil
}
