package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/volume"
)

var (
	// ErrNotRegistered reports a read of an object that no registered pod
	// references, or that lost its last reference during the read.
	ErrNotRegistered = errors.New("not registered")
	// ErrNotSynced reports that nothing is known of an object yet, or not enough:
	// the API server has still to be heard. An error that wraps it also wraps the
	// failure of the last request, if it failed.
	ErrNotSynced = errors.New("not synced with the API server yet")
)

const (
	sweepInterval = time.Minute
	minIdle       = time.Minute
	// idleResyncs resyncs without a read make an object idle: each resync reads
	// every object of a live volume, so only forgotten ones get that far.
	idleResyncs = 5
)

// Identity has each request carry the rights of a pod's service account; *authz.Identity
// is one.
type Identity interface {
	// As returns a context for requests of the account.
	As(ctx context.Context, account volume.Account) context.Context
	// Ready returns nil if requests of the account can be sent now, else why not.
	Ready(account volume.Account) error
	// Await returns nil once they can be, or an error when ctx ends before.
	Await(ctx context.Context, account volume.Account) error
}

// ownIdentity leaves requests as they are: they have the rights of the client.
type ownIdentity struct{}

func (ownIdentity) As(ctx context.Context, _ volume.Account) context.Context { return ctx }
func (ownIdentity) Ready(volume.Account) error                               { return nil }
func (ownIdentity) Await(context.Context, volume.Account) error              { return nil }

// Nodes gets Node objects. A client-go client is one.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
}

// Options says how a Manager works.
type Options struct {
	// Client lists and watches, or gets. It must not limit the rate of requests: a limit
	// holds up thousands of objects after a restart, and the manager bounds and paces its
	// requests itself. Required.
	Client *apiclient.Client
	// Identity, if it is not nil, has objects read with the rights of the pods that
	// reference them; what is read is shared by the pods of one service account and no
	// others. Client must heed the contexts that it makes.
	Identity Identity
	// Nodes gets the Node, with the plugin's own rights. Required by Cache, of no use to the
	// others.
	Nodes Nodes
	// Strategy is how changes are learnt of; empty: Watch.
	Strategy Strategy
	// NodeName names the Node object that says how long Cache keeps an object; it is
	// got at most once a minute. Required by Cache, of no use to the others.
	NodeName string
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
	if o.Strategy == Cache && (o.NodeName == "" || o.Nodes == nil) {
		return errors.New("manager options: Nodes and NodeName are required by the strategy Cache")
	}
	return nil
}

// Manager serves the objects that registered pods reference. All methods but
// Subscribe are safe for concurrent use.
//
// mu guards registered and makes registrations atomic towards each other. It is
// taken before any lock of objects, and no read takes it.
type Manager struct {
	objects *references
	// accounts says that objects are read with the rights of pods' accounts.
	accounts bool
	maxIdle  time.Duration
	ran      atomic.Bool

	mu sync.Mutex
	// registered holds what each pod's volumes reference, so that unregistering
	// takes away exactly what registering added. The pod's UID is the key because
	// a new pod may bear the name of one that is still being torn down.
	registered map[types.UID]map[string][]key
}

// New returns a manager that knows no pod yet. It starts no goroutine.
func New(opts Options) (*Manager, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	s, err := newStore(opts)
	if err != nil {
		return nil, err
	}
	return &Manager{
		objects:    newReferences(s),
		accounts:   opts.Identity != nil,
		maxIdle:    max(idleResyncs*opts.ResyncInterval, minIdle),
		registered: map[types.UID]map[string][]key{},
	}, nil
}

// Subscribe sets who hears of changes; call it before the first RegisterPod.
//
// fn is called after each change of what GetObject returns for a reference to pods of an
// account, the zero Account where objects are read with the client's own rights: its first
// sync, an update, a deletion, a recreation, and the sync that follows a GetObject
// that failed with ErrNotSynced; and after a refusal by the API server between those
// two, which the error of a GetObject tells from then on; and when Denied begins or ceases
// to return an error. fn should read the latest state
// instead of counting calls. Calls for one reference follow each other, calls for
// several run at the same time, and a call may arrive just after the reference was
// unregistered. No lock of the manager is held, but fn must not block: it holds up
// what is to be learnt of that object next, and Run's end.
func (m *Manager) Subscribe(fn func(volume.Account, volume.Ref)) { m.objects.subscribe(fn) }

// Run stops the watches of idle objects until ctx ends; then it stops every
// reflector and request, also those started before Run, waits until their goroutines
// have ended, and returns nil. Nothing starts afterwards: reads fail with ErrNotSynced
// at once. Objects are served without Run too, but never go idle, and only Run ends
// what other methods started. Run may be called once.
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

// RegisterPod declares that the volume volumeID of pod references refs. It doesn't
// wait for the network. Registering a volume again replaces its references, and those
// in both sets are never let go in between.
//
// With Watch, the first reference to an object starts its reflector, and a pod that
// references an immutable object for the first time has it checked again: reads of it
// wait until that is done. With Cache, the first reference of each pod, with Get every
// reference has reads wait for an answer to a request of after that moment; it is the
// first GetObject or Refresh that sends one.
func (m *Manager) RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref) {
	objects := keys(m.account(pod), distinct(refs))
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.registered[pod.UID]
	if volumes == nil {
		volumes = map[string][]key{}
		m.registered[pod.UID] = volumes
	}
	old := volumes[volumeID]
	volumes[volumeID] = objects
	m.objects.add(pod.UID, objects)
	m.objects.drop(pod.UID, old)
}

// UnregisterPod takes away the references of the volume volumeID of pod. The last
// reference to an object stops its reflector or request; UnregisterPod doesn't wait
// for its end. An unknown volume is ignored.
func (m *Manager) UnregisterPod(pod volume.Pod, volumeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.registered[pod.UID]
	objects := volumes[volumeID]
	delete(volumes, volumeID)
	if len(volumes) == 0 {
		delete(m.registered, pod.UID)
	}
	m.objects.drop(pod.UID, objects)
}

// account returns whose rights a pod's objects are read with.
func (m *Manager) account(pod volume.Pod) volume.Account {
	if !m.accounts {
		return volume.Account{}
	}
	return pod.Account()
}

// find returns the object of ref as pod reads it, or nil.
func (m *Manager) find(pod volume.Pod, ref volume.Ref) *referenced {
	return m.objects.find(key{m.account(pod), ref})
}

// GetObject returns the latest known state of ref for pod. It does not wait for the network.
//
// The error is NotFound (apierrors.IsNotFound) if the object is known to be absent,
// ErrNotRegistered, or ErrNotSynced, which also wraps the failure of the last request, if it
// failed. After ErrNotSynced the subscriber is called once the state is known. With Cache and
// Get, GetObject starts a request if none was sent since the registration. The caller must not
// change the object. A read that fails counts as a read too.
func (m *Manager) GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error) {
	obj := m.find(pod, ref)
	if obj == nil {
		return nil, notRegistered(ref)
	}
	return obj.get()
}

// Denied returns why the last known state of ref for pod, which GetObject goes on to return, can't be
// kept current any more: the API server refuses to tell more (a Forbidden API error), or to
// tell of changes, or accepts no token (an Unauthorized one), or tells older states only. Of
// what isn't synced it returns a refusal. It does so once nothing else has come for some
// seconds, for tokens of pods some minutes, and returns nil if ref isn't registered.
func (m *Manager) Denied(pod volume.Pod, ref volume.Ref) error {
	obj := m.find(pod, ref)
	if obj == nil {
		return nil
	}
	return obj.denied()
}

// Prioritize has the requests for refs that wait to be sent come before those of pods whose
// publish doesn't wait for them. It counts until a request for the object is answered. What
// isn't registered is ignored.
func (m *Manager) Prioritize(pod volume.Pod, refs []volume.Ref) {
	for _, ref := range refs {
		if obj := m.find(pod, ref); obj != nil {
			obj.prioritize(pod.UID)
		}
	}
}

// Renewed tells that requests of an account have a new credential: one that the API server
// refused must not hold up the next.
func (m *Manager) Renewed(account volume.Account) { m.objects.store.renewed(account) }

// Refresh asks for the present state, for pod, of those of refs of which nothing else would
// tell it: with Cache those whose answer is older than the TTL, was a failure, or that the
// object does not exist; with Get all of them; with Watch none. What was asked for
// before Refresh was called does not count with Get. Refresh doesn't wait; the
// subscriber hears of what changes. A request that fails changes nothing of what is
// known, and is not repeated but by the next Refresh. What isn't registered is ignored.
func (m *Manager) Refresh(pod volume.Pod, refs []volume.Ref) {
	for _, ref := range refs {
		if obj := m.find(pod, ref); obj != nil {
			obj.refresh()
		}
	}
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
