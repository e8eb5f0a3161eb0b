package publisher

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// Publisher publishes volumes and keeps them current. All methods are safe for concurrent use.
//
// mu guards the fields below it and those of vol and worker that say so. It is never held over a system call, or over a
// lock of another package. The goroutines are those of Run: one for each pod that has volumes, and the reads and
// questions of pods and access. They end with its context, but a sync that hangs ends with its system call.
type Publisher struct {
	opts   Options
	limits limits
	// newWriter makes the writer of one volume.
	newWriter func(opts writer.Options) treeWriter
	// access answers for Reviews; nil without them.
	access *access.Access
	pods   *pod.Reads
	// renders counts the places of inTurn.
	renders *semaphore.Weighted
	// kept counts the handles that are kept.
	kept *semaphore.Weighted
	// stopping is closed when no publish is to wait any more, ended when no worker runs any more.
	stopping, ended chan struct{}
	stopOnce        sync.Once
	running         sync.WaitGroup
	// orphans are the volumes that Restore has found of pods that are gone. Run unmounts them.
	orphans []mount.Mounted

	mu sync.Mutex
	// start starts the goroutine of a worker; nil before Run and after its end.
	start   func(*worker)
	volumes map[string]*vol
	byRef   map[volume.Ref]map[*vol]struct{}
	workers map[types.UID]*worker
	// used is the bytes that are counted for all volumes.
	used int64
}

// vol is one volume, from the call or the start that finds it until nobody wants it and it is not mounted.
type vol struct {
	p          *Publisher
	id, target string
	// since is when this process began with the volume.
	since  time.Time
	worker *worker

	// Publisher.mu guards the fields up to told. Only the worker sets mounted and size, so it reads them as they are.
	//
	// want is nil for a volume that was found, and of which nobody knows yet what was asked for.
	want *Request
	// waits says that a publish waits. A volume that is not mounted lives as long as one does.
	waits bool
	// gone says that an unpublish wants it away. That ends with the volume, or with an unmount that failed.
	gone, removed bool
	// lost says that a publish found no mount, so the worker is to look again.
	mounted, attaching, lost bool
	// err is why the volume does not show what want says.
	err error
	// unmounts counts the tries to unmount, and unmountErr is the last one's error.
	unmounts   int
	unmountErr error
	// syncs counts those that began.
	syncs int
	// changed is closed at each change of the above.
	changed chan struct{}
	// size is what its file system holds, which Publisher.used has.
	size int64
	// changedAt is when the first change came that no sync has taken up; zero for none.
	changedAt time.Time
	told      told

	// What follows is the worker's own. seen says that it has looked what is mounted, hint is the pod that the volume
	// names then, or hintErr why it names none.
	seen    bool
	hint    volume.Pod
	hintErr error
	// says is what the pod's spec says, until what is wanted is known. failing is since when the pod can't be read; zero
	// while it can.
	says    *pod.Spec
	failing time.Time
	// spec is what specOf asks for, or specErr why that can't be had.
	spec    *spec
	specErr error
	specOf  *Request
	// admitted says that the pod had all its rights when its publish asked.
	admitted bool
	// token is the last one that a request brought, and proven says that the pod is of the account that it claims.
	token  volume.Token
	proven bool
	// registered are the objects that are read.
	registered []volume.Ref
	// askAt is when the objects are asked for again, and asked how long that is after the last time.
	askAt    time.Time
	asked    time.Duration
	failures int
	contents contents
	receipts *openReceipts
}

// spec is what a request asks for.
type spec struct {
	*volume.Spec
	// resolved is the same with what the pod's own spec adds to it, and leftOut names what that sets and a volume can't
	// know.
	resolved *volume.Spec
	leftOut  string
	refs     []volume.Ref
	// consent is the objects that the pod needs a right to, and consents the same with where the spec first names each.
	consent  map[volume.Ref]bool
	consents []volume.Reference
}

// treeWriter makes a directory show a tree; *writer.Writer is one.
type treeWriter interface {
	Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Result, error)
	// Compare says whether it does so already, but for the record, and whether what it shows is whole.
	Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (same, whole bool, err error)
	// Withdraw takes away the files that name one of the objects.
	Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, record string) (writer.Result, error)
}

// contents is what the files of a volume show.
type contents struct {
	writer treeWriter
	// kept is a handle on the volume's mount, nil for none.
	kept Mount
	// skipped is what the pod's author was last told of the variables that the env files lack.
	skipped string
	// record is that of a volume which was found, until its objects are known. shown is what the files show.
	record string
	shown  record.Versions
	// withdrawn holds the refused objects of which this process has seen to it that no file is there.
	withdrawn map[volume.Ref]bool
	// proven says that this process wrote or compared the files at shown.
	proven bool
	// switched is when the files were last changed.
	switched time.Time
	// pruneAt is when the next superseded generation has had its time; zero for none. leftover is why one could not be
	// removed, which ails the volume until it is known to be gone.
	pruneAt  time.Time
	leftover error
	// spreadAt is the pod's moment for a change that waits; zero for none.
	spreadAt time.Time
	// changedAt is when the first change came that the files don't show yet; zero for none.
	changedAt time.Time
}

// worker is the goroutine of a pod. It lives as long as the pod has volumes. Publisher.mu guards its fields.
type worker struct {
	p   *Publisher
	uid types.UID
	all map[*vol]struct{}
	// due says when volumes are to be synced next.
	due map[*vol]time.Time
	// poke has room for one.
	poke chan struct{}
	// current is what is synced, and cancel ends that.
	current *vol
	cancel  context.CancelCauseFunc
}

// add puts a new volume into the table, below its id or another key. The caller holds mu.
func (p *Publisher) add(key, id, target string) *vol {
	v := &vol{p: p, id: id, target: target, since: time.Now(), changed: make(chan struct{})}
	v.receipts = newReceipts(p.opts.Opens, func(at time.Time) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wake(v, at)
	})
	uid := types.UID(podUID(p.opts.KubeletDir, target))
	w := p.workers[uid]
	if w == nil {
		w = &worker{p: p, uid: uid, all: map[*vol]struct{}{}, due: map[*vol]time.Time{}, poke: make(chan struct{}, 1)}
		p.workers[uid] = w
		if p.start != nil {
			p.start(w)
		}
	}
	v.worker = w
	w.all[v] = struct{}{}
	p.volumes[key] = v
	return v
}

// leave undoes add. The caller holds mu and is the worker, which ends after its last volume: what is added later finds
// another one.
func (p *Publisher) leave(v *vol) {
	for _, key := range []string{v.id, leftoverKey(v.id, v.target)} {
		if p.volumes[key] == v {
			delete(p.volumes, key)
		}
	}
	v.charge(0)
	v.removed = true
	w := v.worker
	delete(w.due, v)
	if delete(w.all, v); len(w.all) == 0 {
		delete(p.workers, w.uid)
	}
	v.notify()
}

// leftoverKey is the place in the table of an unpublish at a target that is not the volume's.
func leftoverKey(id, target string) string { return id + "@" + target }

// follow has changes of objects wake a volume.
func (v *vol) follow(refs []volume.Ref) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	for _, ref := range refs {
		if v.p.byRef[ref] == nil {
			v.p.byRef[ref] = map[*vol]struct{}{}
		}
		v.p.byRef[ref][v] = struct{}{}
	}
}

// unfollow undoes follow.
func (v *vol) unfollow(refs []volume.Ref) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	for _, ref := range refs {
		if delete(v.p.byRef[ref], v); len(v.p.byRef[ref]) == 0 {
			delete(v.p.byRef, ref)
		}
	}
}

// wake has a volume synced at a time, or earlier. The caller holds mu.
func (p *Publisher) wake(v *vol, at time.Time) {
	w := v.worker
	if due, ok := w.due[v]; v.removed || ok && !at.Before(due) {
		return
	}
	w.due[v] = at
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// notify wakes the calls that wait. The caller holds mu.
func (v *vol) notify() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// set changes what mu guards, and tells the calls.
func (v *vol) set(change func()) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	change()
	v.notify()
}

// charge counts what a volume holds of the node's total. The caller holds mu.
func (v *vol) charge(size int64) {
	v.p.used += size - v.size
	v.size = size
}
