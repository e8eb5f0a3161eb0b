// Package publisher owns the life of published volumes: publish, unpublish,
// reconcile after a change, resync, and restore after a restart, with the records
// that a restore needs.
//
// There is one way to write a volume: its objects are looked up, rendered, and
// written through a handle on its mount; publish does that on a mount that nobody
// sees yet, everything else on the visible one. The package must not know of gRPC,
// of flags, or of how objects reach the process.
package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// Objects is where the objects come from; *manager.Manager is one. Its methods but
// Lookup must not wait for the network, nor may Lookup.
type Objects interface {
	// Subscribe names the function to call after each change of what Lookup returns.
	Subscribe(func(volume.Ref))
	// RegisterPod declares which objects a pod's volume needs; again with others
	// replaces them.
	RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref)
	// UnregisterPod takes that back; it is idempotent.
	UnregisterPod(pod volume.Pod, volumeID string)
	// Lookup returns the newest known state of a registered object, a NotFound API
	// error if it does not exist, or manager.ErrNotSynced.
	Lookup(ref volume.Ref) (*volume.Object, error)
	// Refresh has the state of objects asked for again, where nothing tells of their
	// changes by itself. It does not wait for the answer; a change is told like any.
	Refresh(refs []volume.Ref)
}

// Pods reads pods' own specs; *podenv.Reader is one.
type Pods interface {
	// Env returns what a container's envFrom and env set, and in words what of it a
	// volume can't know. The error is a NotFound API error if no pod of that UID
	// exists, a Forbidden one if it may not be read, and podenv.ErrUnusable if the pod
	// has no such container.
	Env(ctx context.Context, pod volume.Pod, container string) (env volume.Env, leftOut []string, err error)
}

// Mounts makes, proves and removes the mounts of volumes; NewMounts returns the
// real ones.
type Mounts interface {
	Create(ctx context.Context, params mount.Params) (Mount, error)
	Reopen(ctx context.Context, volumeID, target string) (Mount, error)
	Check(ctx context.Context, volumeID, target string) error
	Unmount(ctx context.Context, volumeID, target string) error
	List(ctx context.Context) ([]mount.Mounted, error)
	Usage(ctx context.Context, volumeID, target string) (mount.Usage, error)
}

// Mount is a writable handle on one volume's file system.
type Mount interface {
	Root() *os.Root
	Attach(ctx context.Context, target string) error
	Close() error
}

// Options are what a Publisher needs.
type Options struct {
	Objects Objects
	Mounts  Mounts
	// Pods is asked for the environment of podEnv sources.
	Pods Pods
	// Events hears what ails volumes; nil: nobody does.
	Events Events
	// NodeName is the name of the Node, for the variables that name it.
	NodeName string
	// StateDir is the directory of the records; it is made if it does not exist.
	StateDir string
	// KubeletDir is the kubelet's root directory; target paths lie below it.
	KubeletDir string
	// ResyncInterval is how often every volume is compared with its objects.
	ResyncInterval time.Duration
	// PublishWait bounds how long a publish waits for required objects and keys.
	PublishWait time.Duration
	// MaxVolumeSize and MaxTotalSize bound the memory, in bytes, that the files of
	// one volume and of all volumes take.
	MaxVolumeSize, MaxTotalSize int64
	// Workers is how many volumes are reconciled at once; 0 means 4.
	Workers int
}

func (o *Options) validate() error {
	var errs []error
	if o.Objects == nil {
		errs = append(errs, errors.New("Objects: Required value"))
	}
	if o.Mounts == nil {
		errs = append(errs, errors.New("Mounts: Required value"))
	}
	if o.Pods == nil {
		errs = append(errs, errors.New("Pods: Required value"))
	}
	if o.NodeName == "" {
		errs = append(errs, errors.New("NodeName: Required value"))
	}
	if !filepath.IsAbs(o.KubeletDir) {
		errs = append(errs, fmt.Errorf("KubeletDir: Invalid value: %q: must be an absolute path", o.KubeletDir))
	}
	if o.StateDir == "" {
		errs = append(errs, errors.New("StateDir: Required value"))
	}
	if o.ResyncInterval <= 0 {
		errs = append(errs, fmt.Errorf("ResyncInterval: Invalid value: %s: must be positive", o.ResyncInterval))
	}
	if o.PublishWait < 0 {
		errs = append(errs, fmt.Errorf("PublishWait: Invalid value: %s: must not be negative", o.PublishWait))
	}
	if o.MaxVolumeSize <= 0 {
		errs = append(errs, fmt.Errorf("MaxVolumeSize: Invalid value: %d: must be positive", o.MaxVolumeSize))
	}
	if o.MaxTotalSize < o.MaxVolumeSize {
		errs = append(errs, fmt.Errorf("MaxTotalSize: Invalid value: %d: must not be less than MaxVolumeSize (%d)", o.MaxTotalSize, o.MaxVolumeSize))
	}
	return errors.Join(errs...)
}

// Publisher publishes volumes and keeps them current. All methods are safe for
// concurrent use.
//
// mu guards the maps and the fields of a published that say so, and is never held
// over a system call or a lock of another package. The goroutines are those of
// Run: the workers and the resync; they end with its context. A CSI call runs in
// its caller's goroutine.
type Publisher struct {
	opts    Options
	limits  limits
	records *recordStore
	// newWriter makes the writer of one volume.
	newWriter func(spec *volume.Spec) treeWriter
	// queue holds ids of live volumes to reconcile, each at most once.
	queue workqueue.TypedRateLimitingInterface[string]
	// stopping is closed when waiting publishes are to give up.
	stopping chan struct{}
	stopOnce sync.Once

	mu      sync.Mutex
	calls   map[string]*call
	volumes map[string]*published
	byRef   map[volume.Ref]map[*published]struct{}
	used    int64
}

// Retries of a failed write start at retryMin and double up to retryMax, so that a
// volume recovers soon after what ailed it has gone.
const (
	retryMin       = 50 * time.Millisecond
	retryMax       = 5 * time.Second
	defaultWorkers = 4
)

// New returns a Publisher that knows of no volume yet; Restore takes over those of
// an earlier process. It fails if opts are not valid or the state directory can't
// be made. Close the Publisher after Run has returned.
func New(opts Options) (*Publisher, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("publisher options: %w", err)
	}
	if opts.Events == nil {
		opts.Events = noEvents{}
	}
	if opts.Workers == 0 {
		opts.Workers = defaultWorkers
	}
	opts.KubeletDir = filepath.Clean(opts.KubeletDir)
	records, err := openRecords(opts.StateDir)
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		opts:      opts,
		limits:    limitsFor(opts.MaxVolumeSize),
		records:   records,
		newWriter: newWriter,
		queue:     workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)),
		stopping:  make(chan struct{}),
		calls:     map[string]*call{},
		volumes:   map[string]*published{},
		byRef:     map[volume.Ref]map[*published]struct{}{},
	}
	opts.Objects.Subscribe(p.changed)
	return p, nil
}

// Run reconciles and resyncs until ctx ends, and returns when its goroutines have.
// It is called once.
func (p *Publisher) Run(ctx context.Context) {
	var running sync.WaitGroup
	for range p.opts.Workers {
		running.Go(func() {
			for p.reconcileNext(ctx) {
			}
		})
	}
	running.Go(func() { p.resync(ctx) })
	<-ctx.Done()
	p.StopWaiting()
	p.queue.ShutDown()
	running.Wait()
}

// StopWaiting ends every publish that waits for an object, with ReasonUnavailable,
// and lets no later one wait. It is idempotent.
func (p *Publisher) StopWaiting() {
	p.stopOnce.Do(func() { close(p.stopping) })
}

// Close releases the state directory and, where Run never ran, the queue.
func (p *Publisher) Close() error {
	p.StopWaiting()
	p.queue.ShutDown()
	return p.records.close()
}

// published is one volume from the moment its publish registers it until its
// unpublish, or the failure of its publish, releases it.
type published struct {
	// What the publish asked for, and the objects that this names; constant.
	request Request
	spec    *volume.Spec
	refs    []volume.Ref
	// wake tells a publish that waits, or is about to render, of a change; it has
	// room for one.
	wake chan struct{}

	// live says that the volume is visible, so that changes are the queue's.
	// Guarded by Publisher.mu, as are size, the bytes counted for it in used, and due,
	// which says that the next reconcile is to have its objects refreshed.
	live bool
	size int64
	due  bool

	// contents is what its files show; who writes to the volume holds its lock.
	contents contents

	condition condition
}

// poke notes a change of an object of a volume that is not live yet.
func (v *published) poke() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// add makes a volume known, so that changes of its objects reach it, and registers
// its pod. The volume must be new.
func (p *Publisher) add(v *published) {
	p.track(v)
	p.opts.Objects.RegisterPod(v.request.Pod, v.request.VolumeID, v.refs)
}

// track is add without the registration, for a volume that needs no object any more.
func (p *Publisher) track(v *published) {
	p.mu.Lock()
	p.volumes[v.request.VolumeID] = v
	for _, ref := range v.refs {
		if p.byRef[ref] == nil {
			p.byRef[ref] = map[*published]struct{}{}
		}
		p.byRef[ref][v] = struct{}{}
	}
	p.mu.Unlock()
}

// remove undoes add and everything that was counted for the volume. It is
// idempotent. The caller holds the lock of the contents or owns a volume that never
// was live.
//
// The volume leaves the maps last: as long as it is there, a publish of the same id
// finds it and waits for its end, so what is undone here can't be the next one's.
func (p *Publisher) remove(v *published) {
	if p.lookup(v.request.VolumeID) != v {
		return
	}
	p.opts.Objects.UnregisterPod(v.request.Pod, v.request.VolumeID)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.volumes, v.request.VolumeID)
	for _, ref := range v.refs {
		delete(p.byRef[ref], v)
		if len(p.byRef[ref]) == 0 {
			delete(p.byRef, ref)
		}
	}
	p.used -= v.size
	v.size, v.live = 0, false
}

// lookup returns the volume of an id, or nil.
func (p *Publisher) lookup(volumeID string) *published {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.volumes[volumeID]
}

// lookupLive returns the volume of an id if it is live, or nil. What is not live
// belongs to the publish that runs, which holds its lock for as long as it waits.
func (p *Publisher) lookupLive(volumeID string) *published {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.volumes[volumeID]; v != nil && v.live {
		return v
	}
	return nil
}

// changed is called by the manager after an object has changed. It must not block.
func (p *Publisher) changed(ref volume.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for v := range p.byRef[ref] {
		if v.live {
			p.queue.Add(v.request.VolumeID)
			continue
		}
		v.poke()
	}
}

// goLive hands the volume's changes to the queue, with what changed while it was
// being published.
//
// A pinned volume is never rewritten: it lets its objects go instead, so that nothing
// is watched for it, and stays out of the queue's reach.
func (p *Publisher) goLive(v *published) {
	if v.spec.Pinned() {
		p.opts.Objects.UnregisterPod(v.request.Pod, v.request.VolumeID)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v.live = true
	select {
	case <-v.wake:
		p.queue.Add(v.request.VolumeID)
	default:
	}
}
