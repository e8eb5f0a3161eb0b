package publisher

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeObjects is a manager that knows everything at once. All its methods are safe for concurrent use. The subscriber is called without the
// lock.
type fakeObjects struct {
	guard
	// subscriber is called after changes.
	subscriber func(volume.ServiceAccount, volume.Ref)
	objects    map[volume.Ref]*volume.Object
	// failures has the errors that reads of a ref return, whatever the object is.
	failures map[volume.Ref]error
	// denials has the errors that DenialErr returns for a ref.
	denials    map[volume.Ref]error
	registered map[string][]volume.Ref
	// kept has the registrations for which MarkMounted was called.
	kept map[string]bool
	// registrationsMade counts the calls of RegisterPod.
	registrationsMade int
	reads             map[volume.Ref][]time.Time
	refreshes         map[volume.Ref][]time.Time
	again             map[volume.Ref]*volume.Object // what ReadAgain finds
	version           int
	// rollouts, revisions and canaries have the annotations that each object gets.
	rollouts  map[volume.Ref]string
	canaries  map[volume.Ref]string
	revisions map[volume.Ref]volume.Revision
	// onRegister and onUnregister are called at the start of RegisterPod and UnregisterPod, without the lock.
	onRegister, onUnregister func()
}

func newFakeObjects() *fakeObjects {
	return &fakeObjects{
		subscriber: func(volume.ServiceAccount, volume.Ref) {},
		objects:    map[volume.Ref]*volume.Object{},
		failures:   map[volume.Ref]error{},
		denials:    map[volume.Ref]error{},
		registered: map[string][]volume.Ref{},
		kept:       map[string]bool{},
		reads:      map[volume.Ref][]time.Time{},
		refreshes:  map[volume.Ref][]time.Time{},
		again:      map[volume.Ref]*volume.Object{},
		rollouts:   map[volume.Ref]string{},
		revisions:  map[volume.Ref]volume.Revision{},
		canaries:   map[volume.Ref]string{},
		version:    100,

		onRegister:   func() {},
		onUnregister: func() {},
	}
}

func configMap(name string) volume.Ref {
	return volume.Ref{Kind: volume.ConfigMap, Namespace: testNamespace, Name: name}
}

func secret(name string) volume.Ref {
	return volume.Ref{Kind: volume.Secret, Namespace: testNamespace, Name: name}
}

func (o *fakeObjects) Subscribe(fn func(volume.ServiceAccount, volume.Ref)) {
	o.locked(func() { o.subscriber = fn })
}

func registrationKey(pod volume.Pod, volumeID string) string { return string(pod.UID) + "/" + volumeID }

func (o *fakeObjects) RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref) {
	o.onRegister()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.registered[registrationKey(pod, volumeID)] = refs
	o.registrationsMade++
}

func (o *fakeObjects) UnregisterPod(pod volume.Pod, volumeID string) {
	o.onUnregister()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.registered, registrationKey(pod, volumeID))
	delete(o.kept, registrationKey(pod, volumeID))
}

func (o *fakeObjects) MarkMounted(pod volume.Pod, volumeID string) {
	o.locked(func() { o.kept[registrationKey(pod, volumeID)] = true })
}

// isKept reports whether a volume counts as mounted.
func (o *fakeObjects) isKept(pod volume.Pod, volumeID string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept[registrationKey(pod, volumeID)]
}

func (o *fakeObjects) GetObject(_ volume.Pod, ref volume.Ref) (*volume.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reads[ref] = append(o.reads[ref], time.Now())
	switch {
	case !o.isRegistered(ref):
		return nil, fmt.Errorf("%s: %w", ref, manager.ErrNotRegistered)
	case o.failures[ref] != nil:
		return nil, o.failures[ref]
	}
	if object := o.objects[ref]; object != nil {
		return object, nil
	}
	return nil, apierrors.NewNotFound(resourceOf(ref), ref.Name)
}

func (o *fakeObjects) DenialErr(_ volume.Pod, ref volume.Ref) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.denials[ref]
}

// deny removes the right to an object. A nil error restores it.
func (o *fakeObjects) deny(ref volume.Ref, err error) {
	o.set(ref, func() { o.denials[ref] = err })
}

func (o *fakeObjects) OnNewCredential(volume.ServiceAccount) {}

func (o *fakeObjects) Refresh(_ volume.Pod, refs []volume.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, ref := range refs {
		o.refreshes[ref] = append(o.refreshes[ref], time.Now())
	}
}

func (o *fakeObjects) ReadAgain(_ volume.Pod, refs []volume.Ref) {
	o.mu.Lock()
	var news []volume.Ref
	for _, ref := range refs {
		if again := o.again[ref]; again != nil {
			o.objects[ref] = again
			news = append(news, ref)
			delete(o.again, ref)
		}
	}
	tell := o.subscriber
	o.mu.Unlock()
	for _, ref := range news {
		tell(volume.ServiceAccount{}, ref)
	}
}

// takeRefreshes returns when an object was refreshed, and forgets that.
func (o *fakeObjects) takeRefreshes(ref volume.Ref) []time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.refreshes[ref]
	delete(o.refreshes, ref)
	return at
}

func (o *fakeObjects) isRegistered(ref volume.Ref) bool {
	for _, refs := range o.registered {
		if slices.Contains(refs, ref) {
			return true
		}
	}
	return false
}

func resourceOf(ref volume.Ref) schema.GroupResource {
	return schema.GroupResource{Resource: strings.ToLower(string(ref.Kind)) + "s"}
}

// put creates or updates an object. pairs are keys and values.
func (o *fakeObjects) put(ref volume.Ref, pairs ...string) {
	data := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		data[pairs[i]] = []byte(pairs[i+1])
	}
	o.set(ref, func() {
		version := volume.Version{UID: types.UID(fmt.Sprintf("uid-of-%s-%d", ref.Name, o.version)), ResourceVersion: strconv.Itoa(o.version)}
		if old := o.objects[ref]; old != nil {
			version.UID = old.UID
		}
		o.objects[ref] = &volume.Object{Ref: ref, Version: version, Rollout: o.rollouts[ref], Revision: o.revisions[ref], Canary: o.canaries[ref], Data: data}
	})
}

func (o *fakeObjects) get(ref volume.Ref) *volume.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.objects[ref]
}

func (o *fakeObjects) remove(ref volume.Ref) { o.set(ref, func() { delete(o.objects, ref) }) }

// failWith makes reads of an object fail, until err is nil.
func (o *fakeObjects) failWith(ref volume.Ref, err error) {
	o.set(ref, func() { o.failures[ref] = err })
}

func (o *fakeObjects) set(ref volume.Ref, change func()) {
	o.mu.Lock()
	o.version++
	change()
	tell := o.subscriber
	o.mu.Unlock()
	tell(volume.ServiceAccount{}, ref)
}

// takeReads returns when an object was read, and forgets that.
func (o *fakeObjects) takeReads(ref volume.Ref) []time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.reads[ref]
	delete(o.reads, ref)
	return at
}

// registrations returns what each pod has registered.
func (o *fakeObjects) registrations() map[string][]volume.Ref {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.registered)
}

// forgetPods simulates the end of the manager's process.
func (o *fakeObjects) forgetPods() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.registered)
	clear(o.kept)
}
