package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/question"
	"github.com/refvol/refvol/pkg/volume"
)

var (
	// ErrNotRegistered reports a read of an object that no registered pod
	// references, or that lost its last reference during the read.
	ErrNotRegistered = errors.New("not registered")
	// ErrNotSynced reports that the state of an object isn't known yet. An error that wraps
	// it also wraps the failure of the last request, if that failed.
	ErrNotSynced = errors.New("not synced with the API server yet")
	errShutdown  = errors.New("the manager has shut down")
)

// PendingError is an ErrNotSynced that nothing explains: the answer is under way.
type PendingError struct{ Ref volume.Ref }

func (e *PendingError) Error() string { return fmt.Sprintf("%s: %s", e.Ref, ErrNotSynced) }

// Unwrap returns ErrNotSynced.
func (*PendingError) Unwrap() error { return ErrNotSynced }

// ChangeDetection is how a Manager learns of changes.
type ChangeDetection string

// The ways, which are those of the kubelet.
const (
	// Watch keeps a watch of each object open. Changes arrive at once.
	Watch ChangeDetection = "Watch"
	// Cache keeps an object for the time that the node's annotation node.alpha.kubernetes.io/ttl says. A Refresh after
	// that asks again. The API server may answer from its cache.
	Cache ChangeDetection = "Cache"
	// Get asks for the present state at each Refresh.
	Get ChangeDetection = "Get"
)

const (
	sweepInterval = time.Minute
	minIdle       = time.Minute
	// idleResyncs resyncs without a read make an object idle: each resync reads
	// every object of a live volume, so only forgotten ones get that far.
	idleResyncs = 5
	// detailLevel is the verbosity of what happens to each object, of which there are thousands.
	detailLevel = 4
)

// Requests tells why requests wait; *requests.Requests is one.
type Requests interface {
	// Err returns why those of an account wait, and since when; nil if they don't.
	Err(account volume.ServiceAccount) (since time.Time, err error)
	// Renewed has those of an account go on, which has another credential.
	Renewed(account volume.ServiceAccount)
}

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
	// Client lists and watches, or gets. Its outermost transport is that of Requests, which bounds and paces what is
	// sent: so the client must not. Both are required.
	Client   *apiclient.Client
	Requests Requests
	// Accounts says that objects are read with the rights of the pods' service accounts: the pods of one share what is
	// read, and no others do. The client finds the account of a request by requests.MetaOf. Else objects are read with
	// the client's own rights.
	Accounts bool
	// Nodes gets the Node NodeName. Required by Cache, of no use to the others.
	Nodes Nodes
	// ChangeDetection is how changes are learnt of; empty: Watch.
	ChangeDetection ChangeDetection
	// NodeName names the Node object that says how long Cache keeps an object; it is
	// got at most once a minute. Required by Cache, of no use to the others.
	NodeName string
	// RefusalsPass says that a 403 may pass although no right changes, as those of a node: the
	// authorizer of an API server that starts or lags knows no pod yet, and refuses all
	// objects. Then a 403 counts after a minute instead of five seconds.
	RefusalsPass bool
	// Observer hears of watches; nil: nobody does.
	Observer Observer
	// ResyncInterval is how often every live volume reads its objects. The watch of an
	// object stops when nothing has read it for five times as long, and for a minute at
	// least. The next read starts it again. Required, more than zero.
	ResyncInterval time.Duration
	// MaxCachedSize bounds what objects take in memory, in bytes; 0: nothing does. What several accounts read counts for
	// each. One pod's objects may take an eighth of it. Beyond it GetObject fails with a FullError for volumes that are not mounted.
	MaxCachedSize int64
}

func (o Options) validate() error {
	if o.Client == nil || o.Requests == nil {
		return errors.New("manager options: Client and Requests are required")
	}
	if o.ResyncInterval <= 0 {
		return fmt.Errorf("manager options: ResyncInterval must be more than zero, not %v", o.ResyncInterval)
	}
	if o.MaxCachedSize < 0 {
		return fmt.Errorf("manager options: MaxCachedSize must not be negative, it is %d", o.MaxCachedSize)
	}
	switch o.ChangeDetection {
	case Watch, Cache, Get, "":
	default:
		return fmt.Errorf("manager options: ChangeDetection %q is none of %s, %s and %s", o.ChangeDetection, Watch, Cache, Get)
	}
	if o.ChangeDetection == Cache && (o.NodeName == "" || o.Nodes == nil) {
		return errors.New("manager options: Nodes and NodeName are required by the change detection Cache")
	}
	return nil
}

// Manager serves the objects that registered pods reference. All methods but Subscribe are safe for concurrent use.
//
// mu guards what is below it, and makes registrations atomic towards each other. It is taken before the lock of an item,
// and never held over a call of the subscriber. The goroutines are those of runs, one or two each. Run ends all of them.
type Manager struct {
	requests     Requests
	sources      map[volume.Kind]*source
	observer     Observer
	detection    ChangeDetection
	accounts     bool
	refusalsPass bool
	maxIdle      time.Duration
	cache        *cache
	// ttl says how long Cache keeps an answer; nil for the others.
	ttl *nodeTTL
	// changed tells the subscriber.
	changed func(volume.ServiceAccount, volume.Ref)
	ran     atomic.Bool
	running sync.WaitGroup

	mu sync.RWMutex
	// closed says that Run has ended.
	closed bool
	items  map[key]*item
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
	m := &Manager{
		requests:     opts.Requests,
		sources:      newSources(opts.Client),
		observer:     opts.Observer,
		detection:    cmp.Or(opts.ChangeDetection, Watch),
		accounts:     opts.Accounts,
		refusalsPass: opts.RefusalsPass,
		maxIdle:      max(idleResyncs*opts.ResyncInterval, minIdle),
		cache:        &cache{max: opts.MaxCachedSize, pods: map[types.UID]int64{}},
		changed:      func(volume.ServiceAccount, volume.Ref) {},
		items:        map[key]*item{},
		registered:   map[types.UID]map[string]registration{},
	}
	if m.observer == nil {
		m.observer = noObserver{}
	}
	if m.detection == Cache {
		m.ttl = &nodeTTL{m: m, nodes: opts.Nodes, node: opts.NodeName, ttl: defaultTTL}
	}
	return m, nil
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
// fn should read the latest state instead of counting calls. Calls may run at the same time. A call may arrive just
// after the reference was unregistered. The caller of fn holds no lock of the manager. fn must not
// block, because the object's next change and the end of Run wait for it.
func (m *Manager) Subscribe(fn func(volume.ServiceAccount, volume.Ref)) { m.changed = fn }

// Run stops the watches of idle objects until ctx ends. Then it stops every reflector and request, also those from before
// Run, waits until their goroutines have ended, and returns nil. Nothing starts afterwards: reads fail with ErrNotSynced
// at once. Objects are served without Run too, but their watches never stop by idleness, and only Run ends what other
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
			m.shutdown()
			return nil
		case now := <-ticker.C:
			m.stopIdle(now.Add(-m.maxIdle))
		}
	}
}

func (m *Manager) stopIdle(since time.Time) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, it := range m.items {
		it.stopIfUnreadSince(since)
	}
}

// shutdown stops everything for good and waits for its end. No item can start anything afterwards, because each was
// closed first.
func (m *Manager) shutdown() {
	m.mu.Lock()
	m.closed = true
	for k, it := range m.items {
		it.close(shutdownError(k.ref))
	}
	m.mu.Unlock()
	if m.ttl != nil {
		m.ttl.close()
	}
	m.running.Wait()
}

func shutdownError(ref volume.Ref) error {
	return fmt.Errorf("%s: %w: %w", ref, ErrNotSynced, errShutdown)
}

// RegisterPod declares that the volume volumeID of pod references refs. It doesn't wait for the network. Registering a
// volume again replaces its references. A reference that is in both sets is kept throughout.
//
// The first reference to an object starts its reflector, or a request. The first reference of a pod to an immutable
// object, with Cache the first of each pod and with Get every reference, has the object read afresh: GetObject returns
// ErrNotSynced until a request that is sent after the registration is answered.
func (m *Manager) RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref) {
	account := m.account(pod)
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.volumes(pod)
	old := volumes[volumeID]
	now := registration{mounted: old.mounted}
	for _, ref := range refs {
		if k := (key{account, ref}); m.sources[ref.Kind] != nil && !slices.Contains(now.objects, k) {
			now.objects = append(now.objects, k)
		}
	}
	volumes[volumeID] = now
	for _, k := range now.objects {
		m.refer(k, pod.UID, now.mounted)
	}
	m.drop(pod.UID, old)
}

// refer counts a reference to an object. The caller holds mu.
func (m *Manager) refer(k key, uid types.UID, mounted bool) {
	it, first := m.items[k], false
	if it == nil {
		it, first = m.newItem(k), true
		if m.closed {
			it.closed = shutdownError(k.ref)
		}
		m.items[k] = it
	}
	newPod := m.cache.add(&it.place, uid, mounted)
	if first {
		it.mu.Lock()
		defer it.mu.Unlock()
		it.startLocked(!mounted) // a publish waits
		return
	}
	it.referenced(uid, newPod, !mounted)
}

func (m *Manager) newItem(k key) *item {
	return &item{
		key: k, m: m, source: m.sources[k.ref.Kind], since: time.Now(), lastRead: time.Now(),
		place: place{pods: map[types.UID]need{}}, wants: map[types.UID]uint64{}, state: question.New[*volume.Object](newPauses()),
	}
}

// drop removes the references of a volume, and every object that has none left. The caller holds mu.
func (m *Manager) drop(uid types.UID, v registration) {
	for _, k := range v.objects {
		it := m.items[k]
		last, used := m.cache.remove(&it.place, uid, v.mounted)
		if last {
			it.unreferenced(uid)
		}
		if !used {
			delete(m.items, k)
			it.close(notRegistered(k.ref))
		}
	}
}

// Keep says that the volume volumeID of pod is mounted: until UnregisterPod its objects are kept whatever they take,
// those that are registered and those that will be.
func (m *Manager) Keep(pod volume.Pod, volumeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.volumes(pod)
	r := volumes[volumeID]
	if !r.mounted {
		for _, k := range r.objects {
			m.cache.mount(&m.items[k].place, pod.UID)
		}
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

// CachedBytes returns what objects take in memory, in bytes.
func (m *Manager) CachedBytes() int64 { return m.cache.bytes() }

// UnregisterPod removes the references of the volume volumeID of pod. When the last reference to an object is removed,
// its reflector or request stops. UnregisterPod doesn't wait for its end. It ignores an unknown volume.
func (m *Manager) UnregisterPod(pod volume.Pod, volumeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.registered[pod.UID]
	old := volumes[volumeID]
	delete(volumes, volumeID)
	if len(volumes) == 0 {
		delete(m.registered, pod.UID)
	}
	m.drop(pod.UID, old)
}

// account returns whose rights a pod's objects are read with.
func (m *Manager) account(pod volume.Pod) volume.ServiceAccount {
	if !m.accounts {
		return volume.ServiceAccount{}
	}
	return pod.Account()
}

// find returns the object of ref as pod reads it, or nil.
func (m *Manager) find(pod volume.Pod, ref volume.Ref) *item {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.items[key{m.account(pod), ref}]
}

// GetObject returns the latest known state of ref for pod. It does not wait for the network.
//
// The error is NotFound (apierrors.IsNotFound) if the object is known to be absent, ErrNotRegistered, ErrNotSynced, which
// also wraps why the last request failed or waits, or a FullError, if no volume of pod that references ref is mounted and
// the object may take no memory. After ErrNotSynced the subscriber is called once the state is known. The caller must not
// change the object. A read that fails counts as a read too.
func (m *Manager) GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error) {
	it := m.find(pod, ref)
	if it == nil {
		return nil, notRegistered(ref)
	}
	if err := m.cache.refused(&it.place, pod.UID, ref); err != nil {
		return nil, err
	}
	return it.get(pod.UID)
}

// Denied returns why the state of ref for pod can't be kept current any more, or nil. GetObject goes on to return the last
// known state. The error is a Forbidden API error if the API server refuses the object or its changes, an Unauthorized one
// if it accepts no token, and another one if it sends only states that are older than the known one. An error counts when
// nothing else has come for five seconds, for a minute if refusals pass, or for three minutes if a pod's token is refused.
// Of an object that isn't synced, Denied returns a refusal only. It returns nil if ref isn't registered.
func (m *Manager) Denied(pod volume.Pod, ref volume.Ref) error {
	if it := m.find(pod, ref); it != nil {
		return it.denied()
	}
	return nil
}

// Prioritize has refs whose state is not known asked for at once, and before those that no publish waits for. It ignores
// refs that aren't registered.
func (m *Manager) Prioritize(pod volume.Pod, refs []volume.Ref) {
	for _, ref := range refs {
		if it := m.find(pod, ref); it != nil {
			it.hurry()
		}
	}
}

// Renewed says that there is a new credential of an account. It ends the pause after the refusal of an earlier one.
func (m *Manager) Renewed(account volume.ServiceAccount) { m.requests.Renewed(account) }

// Refresh sends requests for the present state of refs, for pod. With Get it asks for all of them. With Cache it asks for
// those whose last answer is older than the TTL, or said that the object does not exist. With Watch it does nothing.
// Refresh doesn't wait: the subscriber hears of the changes. A request that fails changes nothing of what is known, and
// only the next Refresh repeats it. Refresh ignores refs that aren't registered.
func (m *Manager) Refresh(pod volume.Pod, refs []volume.Ref) {
	for _, ref := range refs {
		if it := m.find(pod, ref); it != nil {
			it.refresh()
		}
	}
}

func notRegistered(ref volume.Ref) error {
	return fmt.Errorf("object %q/%q %w", ref.Namespace, ref.Name, ErrNotRegistered)
}
