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

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

var (
	// ErrNotRegistered says that no registered pod references the object, or that the last reference was removed during the read.
	ErrNotRegistered = errors.New("not registered")
	// ErrNotSynced says that the state of an object is not known yet. If the last request failed, the error also wraps that failure.
	ErrNotSynced = errors.New("not synced with the API server yet")
	errShutdown  = errors.New("the manager has shut down")
)

// PendingError is an ErrNotSynced without a failure: the answer is still due.
type PendingError struct{ Ref volume.Ref }

func (e *PendingError) Error() string { return fmt.Sprintf("%s: %s", e.Ref, ErrNotSynced) }

// Unwrap returns ErrNotSynced.
func (*PendingError) Unwrap() error { return ErrNotSynced }

const (
	sweepInterval = time.Minute
	minIdle       = time.Minute
	// idleResyncs is the number of resyncs without a read after which an object is idle, unless a mounted volume references it: a current volume
	// reads its objects more rarely.
	idleResyncs = 5
	// detailLevel is the log level for messages about single objects, of which there may be thousands.
	detailLevel = 4
)

// Manager serves the objects that registered pods reference. All methods except Subscribe are safe for concurrent use.
//
// mu guards the fields below it and makes registrations atomic. It is taken before the lock of an item, and is never held while the
// subscriber is called. Each run has one or two goroutines. Run ends all of them.
type Manager struct {
	requests     Requests
	sources      map[volume.Kind]*source
	observer     Observer
	detection    ChangeDetection
	accounts     bool
	refusalsPass bool
	maxIdle      time.Duration
	cache        *cache
	inFlight     *inFlight
	logLimit     *loglimit.Limiter
	// ttl says how long Cache keeps an answer. It is nil for the other change detections.
	ttl *nodeTTL
	// changed calls the subscriber.
	changed func(volume.ServiceAccount, volume.Ref)
	ran     atomic.Bool
	running sync.WaitGroup

	mu sync.RWMutex
	// closed means that Run has ended.
	closed bool
	items  map[key]*item
	// registered holds what each pod's volumes reference, so that unregistering removes exactly what registering added. The key is the
	// pod's UID, because a new pod may have the name of one that is still terminating.
	registered map[types.UID]map[string]registration
}

// registration is what one volume references.
type registration struct {
	objects []key
	mounted bool
}

// New returns a manager without pods. It starts no goroutine. It fails if opts are not valid.
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
		inFlight:     newInFlight(),
		logLimit:     opts.LogLimit,
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

// Subscribe sets the function that is called after changes. Call it before the first RegisterPod.
//
// If objects are read with the client's own rights, the account is the zero account. fn is called
//
//   - after each change of what GetObject returns to pods of the account: the first sync, an
//     update, a deletion, a recreation,
//   - after the sync that a GetObject with ErrNotSynced waits for, even if nothing changed,
//   - when the API server refuses the object while a GetObject waits for its sync,
//   - when DenialErr starts or stops to return an error.
//
// fn should read the latest state and not count calls. Calls may run concurrently. A call may arrive shortly after the reference was
// unregistered. No lock of the manager is held during the call. fn must not block, because the object's next change and the end of Run wait
// for it.
func (m *Manager) Subscribe(fn func(volume.ServiceAccount, volume.Ref)) { m.changed = fn }

// Run stops the watches of idle objects until ctx ends. Then it stops every reflector and request, including those from before Run, waits
// until their goroutines have ended, and returns nil. Nothing starts afterwards: reads fail with ErrNotSynced at once. Objects are served
// without Run too, but then idle watches never stop, and nothing ends the goroutines. Run may be called once; a second call fails.
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

// shutdown stops everything for good and waits until it has ended. Items are closed first, so nothing can start afterwards.
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

// RegisterPod declares that the volume volumeID of pod references refs. It doesn't wait for the network. A later call for the same volume
// replaces its references. References that are in both sets are kept throughout.
//
// The first reference to an object starts its reflector, or a request. For a volume that is not mounted, a publish waits: what it needs is
// requested before what nobody waits for. For such a volume an object is read afresh at its pod's first reference to an immutable object,
// with Cache at the first reference of each pod, and with Get always. GetObject then returns ErrNotSynced to this pod, and to no other, until
// a request that was sent after the registration is answered.
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
		m.addReference(k, pod.UID, now.mounted)
	}
	m.removeReferences(pod.UID, old)
}

// addReference counts a reference to an object. The caller holds mu.
func (m *Manager) addReference(k key, uid types.UID, mounted bool) {
	it := m.items[k]
	if it == nil {
		it = &item{
			key: k, m: m, source: m.sources[k.ref.Kind], since: time.Now(), lastRead: time.Now(),
			place: place{pods: map[types.UID]need{}}, demand: demand{publishes: &requests.Pods{}, minTries: map[types.UID]uint64{}},
		}
		if m.closed {
			it.closed = shutdownError(k.ref)
		}
		m.items[k] = it
	}
	it.reference(uid, m.cache.add(&it.place, uid, mounted), !mounted)
}

// removeReferences removes the references of a volume, and every object without references. The caller holds mu.
func (m *Manager) removeReferences(uid types.UID, v registration) {
	for _, k := range v.objects {
		it := m.items[k]
		last, used := m.cache.remove(&it.place, uid, v.mounted)
		if last {
			it.unreference(uid)
		}
		if !used {
			delete(m.items, k)
			it.close(notRegistered(k.ref))
		}
	}
}

// MarkMounted marks the volume volumeID of pod as mounted. Until UnregisterPod its registered objects, and those registered later, are kept
// whatever memory they use.
func (m *Manager) MarkMounted(pod volume.Pod, volumeID string) {
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

// CachedBytes returns the memory of all objects, in bytes.
func (m *Manager) CachedBytes() int64 { return m.cache.bytes() }

// UnregisterPod removes the references of the volume volumeID of pod. When the last reference to an object is removed, its reflector or
// request stops. UnregisterPod doesn't wait for that. It ignores an unknown volume.
func (m *Manager) UnregisterPod(pod volume.Pod, volumeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.registered[pod.UID]
	old := volumes[volumeID]
	delete(volumes, volumeID)
	if len(volumes) == 0 {
		delete(m.registered, pod.UID)
	}
	m.removeReferences(pod.UID, old)
}

// account returns the account whose rights are used to read a pod's objects.
func (m *Manager) account(pod volume.Pod) volume.ServiceAccount {
	if !m.accounts {
		return volume.ServiceAccount{}
	}
	return pod.Account()
}

// find returns the item of ref as pod reads it, or nil.
func (m *Manager) find(pod volume.Pod, ref volume.Ref) *item {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.items[key{m.account(pod), ref}]
}

// GetObject returns the latest known state of ref for pod. It does not wait for the network. The caller must not change the object.
//
// The error is NotFound (apierrors.IsNotFound) if the object is known to be absent; ErrNotRegistered; ErrNotSynced, which also wraps why
// the last request failed or waits; or a FullError if no mounted volume of pod references ref and the cache has no room for the object.
// After ErrNotSynced the subscriber is called once the state is known. A read that fails counts as a read too.
func (m *Manager) GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error) {
	it := m.find(pod, ref)
	if it == nil {
		return nil, notRegistered(ref)
	}
	if err := m.cache.refusalFor(&it.place, pod.UID, ref); err != nil {
		return nil, err
	}
	return it.get(pod.UID)
}

// DenialErr returns why the state of ref for pod cannot be kept current any more, or nil. GetObject continues to return the last known
// state. The error is a Forbidden API error if the API server refuses the object or its changes, an Unauthorized one if it accepts no
// token, and another error if it sends only states that are older than the known one. An error counts when nothing else has come for five
// seconds, for a minute if refusals may pass, or for three minutes if a pod's token is refused. If the object isn't synced, DenialErr
// returns only refusals. It returns nil if ref isn't registered.
func (m *Manager) DenialErr(pod volume.Pod, ref volume.Ref) error {
	if it := m.find(pod, ref); it != nil {
		return it.denialErr()
	}
	return nil
}

// OnNewCredential says that an account has a new credential. It ends the pause after the refusal of an earlier one.
func (m *Manager) OnNewCredential(account volume.ServiceAccount) { m.requests.OnNewCredential(account) }

// Refresh requests the present state of refs, for pod. With Get it requests all of them. With Cache it requests those whose last answer is
// older than the TTL or said that the object does not exist. With Watch it does nothing. Refresh doesn't wait: the subscriber is notified
// of changes. It ends no pause. A request that fails changes nothing that is known. Refresh ignores refs that aren't registered.
func (m *Manager) Refresh(pod volume.Pod, refs []volume.Ref) {
	for _, ref := range refs {
		if it := m.find(pod, ref); it != nil {
			it.refresh()
		}
	}
}

// ReadAgain requests the state of refs again, for pod, whose files show newer versions than the known ones. With Watch nothing follows an
// immutable object, so after an answer of an API server that lagged nothing else would bring a newer state. The next answer may be as old. With
// Cache and Get it does nothing, because Refresh requests such objects. It doesn't wait, ends no pause, and requests an object at most every
// 15 seconds. It ignores refs that aren't registered.
func (m *Manager) ReadAgain(pod volume.Pod, refs []volume.Ref) {
	for _, ref := range refs {
		if it := m.find(pod, ref); it != nil {
			it.readAgain()
		}
	}
}

func notRegistered(ref volume.Ref) error {
	return fmt.Errorf("object %q/%q %w", ref.Namespace, ref.Name, ErrNotRegistered)
}
