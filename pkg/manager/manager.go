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
	// ErrNotSynced reports that the state of an object isn't known yet. An error that wraps
	// it also wraps the failure of the last request, if that failed.
	ErrNotSynced = errors.New("not synced with the API server yet")
)

const (
	sweepInterval = time.Minute
	minIdle       = time.Minute
	// idleResyncs resyncs without a read make an object idle: each resync reads
	// every object of a live volume, so only forgotten ones get that far.
	idleResyncs = 5
)

// Credentials give each request the rights of a pod's service account. *authz.Tokens is one.
type Credentials interface {
	// As returns a context for requests of the account.
	As(ctx context.Context, account volume.Account) context.Context
	// Ready returns nil if requests of the account can be sent now, else why not.
	Ready(account volume.Account) error
	// Await returns nil once they can be sent, or an error when ctx ends before.
	Await(ctx context.Context, account volume.Account) error
}

// ownCredentials leave requests as they are: they have the rights of the client.
type ownCredentials struct{}

func (ownCredentials) As(ctx context.Context, _ volume.Account) context.Context { return ctx }
func (ownCredentials) Ready(volume.Account) error                               { return nil }
func (ownCredentials) Await(context.Context, volume.Account) error              { return nil }

// Observer hears of watches, for metrics; *metrics.Metrics is one. It must return at once, and must be
// safe for concurrent use.
type Observer interface {
	// Rewatched hears that a watch of an object was opened again, as the one before had ended.
	Rewatched(kind volume.Kind)
}

// noObserver is for who wants none.
type noObserver struct{}

func (noObserver) Rewatched(volume.Kind) {}

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
	// Credentials are those of the pods that reference an object. The pods of one service
	// account share what is read, and no others do. Client must use the contexts that
	// Credentials return. Nil: objects are read with the client's own rights.
	Credentials Credentials
	// Nodes gets the Node NodeName. Required by Cache, of no use to the others.
	Nodes Nodes
	// ChangeDetection is how changes are learnt of; empty: Watch.
	ChangeDetection ChangeDetection
	// NodeName names the Node object that says how long Cache keeps an object; it is
	// got at most once a minute. Required by Cache, of no use to the others.
	NodeName string
	// RefusalsPass says that a 403 may pass although no right changes, as those of a node: the
	// authorizer of an API server that starts or lags knows no pod yet, and refuses all
	// objects. Then a 403 counts after a minute instead of five seconds, and refused objects
	// are asked for by single requests, seconds apart, until one is answered.
	RefusalsPass bool
	// Observer hears of watches; nil: nobody does.
	Observer Observer
	// ResyncInterval is how often every live volume reads its objects. The watch of an
	// object stops when nothing has read it for five times as long, and for a minute at
	// least. The next read starts it again. Required, more than zero.
	ResyncInterval time.Duration
	// MaxCachedSize bounds what distinct objects take in memory, in bytes; 0: nothing does. One pod's objects may take
	// an eighth of it. Beyond it GetObject fails with a FullError for volumes that are not mounted.
	MaxCachedSize int64
}

func (o Options) validate() error {
	if o.Client == nil {
		return errors.New("manager options: Client is required")
	}
	if o.ResyncInterval <= 0 {
		return fmt.Errorf("manager options: ResyncInterval must be more than zero, not %v", o.ResyncInterval)
	}
	if o.MaxCachedSize < 0 {
		return fmt.Errorf("manager options: MaxCachedSize must not be negative, it is %d", o.MaxCachedSize)
	}
	if o.ChangeDetection == Cache && (o.NodeName == "" || o.Nodes == nil) {
		return errors.New("manager options: Nodes and NodeName are required by the change detection Cache")
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
	cache   *cache
	// accounts says whether objects are read with the rights of pods' accounts.
	accounts bool
	maxIdle  time.Duration
	ran      atomic.Bool

	mu sync.Mutex
	// registered holds what each pod's volumes reference, so that unregistering removes
	// exactly what registering added. The key is the pod's UID, because a new pod may have
	// the name of one that is still terminating.
	registered map[types.UID]map[string]registration
}

// registration is what one volume references.
type registration struct {
	objects []key
	mounted bool
}

// New returns a manager that knows no pod yet. It starts no goroutine.
func New(opts Options) (*Manager, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	c := newCache(opts.MaxCachedSize)
	s, err := newStore(opts, c)
	if err != nil {
		return nil, err
	}
	return &Manager{
		objects:    newReferences(s),
		cache:      c,
		accounts:   opts.Credentials != nil,
		maxIdle:    max(idleResyncs*opts.ResyncInterval, minIdle),
		registered: map[types.UID]map[string]registration{},
	}, nil
}

// Subscribe sets the function that hears of changes. Call it before the first RegisterPod.
//
// The account is the zero Account where objects are read with the client's own rights.
// fn is called
//
//   - after each change of what GetObject returns to pods of the account: the first sync, an
//     update, a deletion, a recreation,
//   - after the sync that a GetObject with ErrNotSynced waits for, also if nothing changed,
//   - when the API server refuses the object while a GetObject waits for its sync,
//   - when Denied begins or ceases to return an error.
//
// fn should read the latest state instead of counting calls. Calls for one reference follow
// each other, and calls for several run at the same time. A call may arrive just after the
// reference was unregistered. The caller of fn holds no lock of the manager. fn must not
// block, because the object's next change and the end of Run wait for it.
func (m *Manager) Subscribe(fn func(volume.Account, volume.Ref)) { m.objects.subscribe(fn) }

// Run stops the watches of idle objects until ctx ends. Then it stops every reflector and
// request, also those from before Run, waits until their goroutines have ended, and returns
// nil. Nothing starts afterwards: reads fail with ErrNotSynced at once. Objects are served
// without Run too, but their watches never stop by idleness, and only Run ends what other
// methods started. Run may be called once.
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

// RegisterPod declares that the volume volumeID of pod references refs. It doesn't wait for
// the network. Registering a volume again replaces its references. A reference that is in
// both sets is kept throughout.
//
// With Watch, the first reference to an object starts its reflector. The first reference of
// a pod to an immutable object starts another check of it: GetObject returns ErrNotSynced
// until the check is done. With Cache the first reference of each pod, and with Get every
// reference, makes the earlier answers void: GetObject returns ErrNotSynced until a request
// that is sent after the registration is answered. The first GetObject or Refresh sends it.
func (m *Manager) RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref) {
	objects := keys(m.account(pod), distinct(refs))
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.volumes(pod)
	old := volumes[volumeID]
	volumes[volumeID] = registration{objects, old.mounted}
	m.objects.add(pod.UID, volumes[volumeID])
	m.objects.drop(pod.UID, old)
}

// Keep says that the volume volumeID of pod is mounted: until UnregisterPod its objects are kept whatever they take,
// those that are registered and those that will be.
func (m *Manager) Keep(pod volume.Pod, volumeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.volumes(pod)
	r := volumes[volumeID]
	if !r.mounted {
		m.objects.mount(pod.UID, r.objects)
	}
	r.mounted = true
	volumes[volumeID] = r
}

// volumes returns the registrations of a pod. The caller holds mu.
func (m *Manager) volumes(pod volume.Pod) map[string]registration {
	volumes := m.registered[pod.UID]
	if volumes == nil {
		volumes = map[string]registration{}
		m.registered[pod.UID] = volumes
	}
	return volumes
}

// CachedBytes returns what distinct objects take in memory, in bytes.
func (m *Manager) CachedBytes() int64 { return m.cache.bytes() }

// UnregisterPod removes the references of the volume volumeID of pod. When the last
// reference to an object is removed, its reflector or request stops. UnregisterPod doesn't
// wait for its end. It ignores an unknown volume.
func (m *Manager) UnregisterPod(pod volume.Pod, volumeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.registered[pod.UID]
	old := volumes[volumeID]
	delete(volumes, volumeID)
	if len(volumes) == 0 {
		delete(m.registered, pod.UID)
	}
	m.objects.drop(pod.UID, old)
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
// ErrNotRegistered, ErrNotSynced, which also wraps the failure of the last request, if it
// failed, or a FullError, if no volume of pod that references ref is mounted and the object may take no memory. After ErrNotSynced the subscriber is called once the state is known. With Cache and
// Get, GetObject starts a request if none was sent since the registration. The caller must not
// change the object. A read that fails counts as a read too.
func (m *Manager) GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error) {
	obj := m.find(pod, ref)
	if obj == nil {
		return nil, notRegistered(ref)
	}
	if err := obj.holding.refused(pod.UID, ref); err != nil {
		return nil, err
	}
	return obj.get()
}

// Denied returns why the state of ref for pod can't be kept current any more, or nil.
// GetObject goes on to return the last known state. The error is a Forbidden API error if the
// API server refuses the object or its changes, an Unauthorized one if it accepts no token,
// and another one if it sends only states that are older than the known one. An error counts
// when nothing else has come for five seconds, for a minute if refusals pass, or for three
// minutes if a pod's token is refused. Of an object that isn't synced, Denied returns a refusal only. It returns nil if
// ref isn't registered.
func (m *Manager) Denied(pod volume.Pod, ref volume.Ref) error {
	obj := m.find(pod, ref)
	if obj == nil {
		return nil
	}
	return obj.denied()
}

// Prioritize puts the waiting requests for refs before those that no publish waits for. The
// priority of an object ends when its state is known, or that there is none; a refusal keeps it.
// Prioritize ignores refs that aren't registered.
func (m *Manager) Prioritize(pod volume.Pod, refs []volume.Ref) {
	for _, ref := range refs {
		if obj := m.find(pod, ref); obj != nil {
			obj.prioritize(pod.UID)
		}
	}
}

// Renewed says that there is a new credential of an account. It ends the pause after the
// refusal of an earlier one.
func (m *Manager) Renewed(account volume.Account) { m.objects.store.renewed(account) }

// Refresh sends requests for the present state of refs, for pod. With Get it asks for all of
// them, and an answer to an earlier request doesn't count. With Cache it asks for those whose
// last answer is older than the TTL, was a failure, or said that the object does not exist.
// With Watch it does nothing. Refresh doesn't wait: the subscriber hears of the changes. A
// request that fails changes nothing of what is known, and only the next Refresh repeats it.
// Refresh ignores refs that aren't registered.
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
