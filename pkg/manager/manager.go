package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/refvol/refvol/pkg/volume"
)

var (
	// ErrNotRegistered reports a read of an object that no registered pod
	// references, or that lost its last reference during the read.
	ErrNotRegistered = errors.New("not registered")
	// ErrNotSynced reports that nothing is known of an object yet, or not enough:
	// its reflector has still to list it. An error that wraps it also wraps the
	// last failure of a list or a watch, if there was one.
	ErrNotSynced = errors.New("not synced with the API server yet")
)

const (
	sweepInterval = time.Minute
	minIdle       = time.Minute
	// idleResyncs resyncs without a read make an object idle: each resync reads
	// every object of a live volume, so only forgotten ones get that far.
	idleResyncs = 5
)

// Options says how a Manager works. Another way to detect changes than a watch,
// and clients that carry a pod's own identity, are to be chosen here.
type Options struct {
	// Client lists and watches. It must not limit the rate of requests: a limit
	// holds up thousands of objects after a restart, and the manager paces its
	// retries itself. Required.
	Client kubernetes.Interface
	// ResyncInterval is how often every live volume reads its objects. An object
	// unread for five times as long, but for at least a minute, is no longer
	// watched until its next read. Required, more than zero.
	ResyncInterval time.Duration
}

func (o Options) validate() error {
	if o.Client == nil {
		return errors.New("manager options: Client is required")
	}
	if o.ResyncInterval <= 0 {
		return fmt.Errorf("manager options: ResyncInterval must be more than zero, not %v", o.ResyncInterval)
	}
	return nil
}

// Manager serves the objects that registered pods reference. All methods but
// Subscribe are safe for concurrent use.
//
// mu guards registered and makes registrations atomic towards each other. It is
// taken before any lock of objects, and no read takes it.
type Manager struct {
	objects *watchStore
	maxIdle time.Duration
	ran     atomic.Bool

	mu sync.Mutex
	// registered holds what each pod's volumes reference, so that unregistering
	// takes away exactly what registering added. The pod's UID is the key because
	// a new pod may bear the name of one that is still being torn down.
	registered map[types.UID]map[string][]volume.Ref
}

// New returns a manager that knows no pod yet. It starts no goroutine.
func New(opts Options) (*Manager, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Manager{
		objects:    newWatchStore(opts.Client),
		maxIdle:    max(idleResyncs*opts.ResyncInterval, minIdle),
		registered: map[types.UID]map[string][]volume.Ref{},
	}, nil
}

// Subscribe sets who hears of changes; call it before the first RegisterPod.
//
// fn is called after each change of what Lookup returns for a reference: its first
// sync, an update, a deletion, a recreation, and the sync that follows a Lookup
// that failed with ErrNotSynced; and after a refusal to list or watch
// between those two, which the error of a Lookup tells from then on. fn should read the latest state instead of
// counting calls. Calls for one reference follow each other, calls for several run
// at the same time, and a call may arrive just after the reference was
// unregistered. No lock of the manager is held, but fn must not block: it holds up
// the reflector of that object, and Run's end.
func (m *Manager) Subscribe(fn func(volume.Ref)) { m.objects.subscribe(fn) }

// Run stops the watches of idle objects until ctx ends; then it stops every
// reflector, also those started before Run, waits until their goroutines have
// ended, and returns nil. Nothing starts afterwards: reads fail with ErrNotSynced
// at once. Objects are served without Run too, but never go idle, and only Run ends
// what RegisterPod started. Run may be called once.
func (m *Manager) Run(ctx context.Context) error {
	if m.ran.Swap(true) {
		return errors.New("run manager: it may run once only")
	}
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			m.objects.shutdown()
			return nil
		case now := <-ticker.C:
			m.objects.stopIdle(now.Add(-m.maxIdle))
		}
	}
}

// RegisterPod declares that the volume volumeID of pod references refs. The first
// reference to an object starts its reflector; RegisterPod doesn't wait for it.
// Registering a volume again replaces its references, and those in both sets are
// never let go in between. A pod that references an immutable object for the first
// time has it checked again: reads of it wait until that is done.
func (m *Manager) RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref) {
	refs = distinct(refs)
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.registered[pod.UID]
	if volumes == nil {
		volumes = map[string][]volume.Ref{}
		m.registered[pod.UID] = volumes
	}
	old := volumes[volumeID]
	volumes[volumeID] = refs
	m.objects.add(pod.UID, refs)
	m.objects.drop(pod.UID, old)
}

// UnregisterPod takes away the references of the volume volumeID of pod. The last
// reference to an object stops its reflector; UnregisterPod doesn't wait for its
// end. An unknown volume is ignored.
func (m *Manager) UnregisterPod(pod volume.Pod, volumeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.registered[pod.UID]
	refs := volumes[volumeID]
	delete(volumes, volumeID)
	if len(volumes) == 0 {
		delete(m.registered, pod.UID)
	}
	m.objects.drop(pod.UID, refs)
}

// GetObject returns the latest known state of ref. It waits until the object is
// synced or ctx ends.
//
// The error is NotFound (apierrors.IsNotFound) if the object is known to be absent,
// ErrNotRegistered, or ErrNotSynced, which then wraps the last failure to list or
// watch it and ctx's error. A failed read counts as a read too.
func (m *Manager) GetObject(ctx context.Context, ref volume.Ref) (*volume.Object, error) {
	it := m.objects.find(ref)
	if it == nil {
		return nil, notRegistered(ref)
	}
	return it.get(ctx)
}

// Lookup is GetObject without the waiting: it returns ErrNotSynced at once, and the
// subscriber is called when that is over.
func (m *Manager) Lookup(ref volume.Ref) (*volume.Object, error) {
	it := m.objects.find(ref)
	if it == nil {
		return nil, notRegistered(ref)
	}
	return it.lookup()
}

func notRegistered(ref volume.Ref) error {
	return fmt.Errorf("object %q/%q %w", ref.Namespace, ref.Name, ErrNotRegistered)
}

// distinct returns a copy of refs without repetitions.
func distinct(refs []volume.Ref) []volume.Ref {
	seen := make(map[volume.Ref]struct{}, len(refs))
	out := make([]volume.Ref, 0, len(refs))
	for _, ref := range refs {
		if _, ok := seen[ref]; ok {
			continue
		}
		seen[ref] = struct{}{}
		out = append(out, ref)
	}
	return out
}
