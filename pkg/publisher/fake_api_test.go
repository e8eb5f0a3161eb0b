package publisher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeObjects is a manager that knows everything at once. All its methods are safe for concurrent use. The subscriber is called after changes,
// without the lock.
type fakeObjects struct {
	guard
	subscriber func(volume.ServiceAccount, volume.Ref)
	objects    map[volume.Ref]*volume.Object
	// failures has the errors of reads, whatever the object is, and denials those of DenialErr.
	failures, denials map[volume.Ref]error
	// registered has the objects of each pod's volume. kept has the volumes for which MarkMounted was called. registrationsMade counts the
	// calls of RegisterPod.
	registered        map[string][]volume.Ref
	kept              map[string]bool
	registrationsMade int
	reads, refreshes  map[volume.Ref][]time.Time
	readAgain         map[volume.Ref][]time.Time
	version           int
	// renewed counts the calls of OnNewCredential.
	renewed int
	// rollouts, canaries and revisions have the annotations that each object gets.
	rollouts, canaries map[volume.Ref]string
	revisions          map[volume.Ref]volume.Revision
	// onRegister and onUnregister are called at the start of RegisterPod and UnregisterPod, without the lock.
	onRegister, onUnregister func()
}

func newFakeObjects() *fakeObjects {
	type times = map[volume.Ref][]time.Time
	type errs = map[volume.Ref]error
	type texts = map[volume.Ref]string
	return &fakeObjects{
		subscriber: func(volume.ServiceAccount, volume.Ref) {}, onRegister: func() {}, onUnregister: func() {}, version: 100,
		objects: map[volume.Ref]*volume.Object{}, failures: errs{}, denials: errs{},
		registered: map[string][]volume.Ref{}, kept: map[string]bool{}, reads: times{}, refreshes: times{}, readAgain: times{},
		rollouts: texts{}, canaries: texts{}, revisions: map[volume.Ref]volume.Revision{},
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
	o.locked(func() {
		o.registered[registrationKey(pod, volumeID)] = refs
		o.registrationsMade++
	})
}

func (o *fakeObjects) UnregisterPod(pod volume.Pod, volumeID string) {
	o.onUnregister()
	o.locked(func() {
		delete(o.registered, registrationKey(pod, volumeID))
		delete(o.kept, registrationKey(pod, volumeID))
	})
}

func (o *fakeObjects) MarkMounted(pod volume.Pod, volumeID string) {
	o.locked(func() { o.kept[registrationKey(pod, volumeID)] = true })
}

// isKept reports whether a volume counts as mounted.
func (o *fakeObjects) isKept(pod volume.Pod, volumeID string) bool {
	return get(&o.guard, func() bool { return o.kept[registrationKey(pod, volumeID)] })
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
	case o.objects[ref] == nil:
		return nil, apierrors.NewNotFound(resourceOf(ref), ref.Name)
	}
	return o.objects[ref], nil
}

func (o *fakeObjects) DenialErr(_ volume.Pod, ref volume.Ref) error {
	return get(&o.guard, func() error { return o.denials[ref] })
}

// deny removes the right to an object. A nil error restores it.
func (o *fakeObjects) deny(ref volume.Ref, err error) {
	o.set(ref, func() { o.denials[ref] = err })
}

func (o *fakeObjects) OnNewCredential(volume.ServiceAccount) { o.locked(func() { o.renewed++ }) }

func (o *fakeObjects) Refresh(_ volume.Pod, refs []volume.Ref) {
	o.locked(func() {
		for _, ref := range refs {
			o.refreshes[ref] = append(o.refreshes[ref], time.Now())
		}
	})
}

func (o *fakeObjects) ReadAgain(_ volume.Pod, refs []volume.Ref) {
	o.locked(func() {
		for _, ref := range refs {
			o.readAgain[ref] = append(o.readAgain[ref], time.Now())
		}
	})
}

// take returns what a map has for an object, and forgets it: when the object was read, or refreshed.
func (o *fakeObjects) take(from map[volume.Ref][]time.Time, ref volume.Ref) (at []time.Time) {
	o.locked(func() {
		at = from[ref]
		delete(from, ref)
	})
	return at
}

func (o *fakeObjects) takeReads(ref volume.Ref) []time.Time     { return o.take(o.reads, ref) }
func (o *fakeObjects) takeRefreshes(ref volume.Ref) []time.Time { return o.take(o.refreshes, ref) }

func (o *fakeObjects) isRegistered(ref volume.Ref) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(o.registered)), func(refs []volume.Ref) bool { return slices.Contains(refs, ref) })
}

func resourceOf(ref volume.Ref) schema.GroupResource {
	return schema.GroupResource{Resource: ref.Kind.Resource()}
}

// put creates or updates an object. pairs are keys and values.
func (o *fakeObjects) put(ref volume.Ref, pairs ...string) {
	data := map[string][]byte{}
	for key, value := range mapOf(pairs) {
		data[key] = []byte(value)
	}
	o.set(ref, func() {
		version := volume.Version{UID: types.UID(fmt.Sprintf("uid-of-%s-%d", ref.Name, o.version)), ResourceVersion: strconv.Itoa(o.version)}
		if old := o.objects[ref]; old != nil {
			version.UID = old.UID
		}
		o.objects[ref] = &volume.Object{Ref: ref, Version: version, Rollout: o.rollouts[ref], Revision: o.revisions[ref], Canary: o.canaries[ref], Data: data}
	})
}

// putShare is put with a rollout annotation, and putRevision with the annotation of a set.
func (o *fakeObjects) putShare(ref volume.Ref, share string, pairs ...string) {
	o.locked(func() { o.rollouts[ref] = share })
	o.put(ref, pairs...)
}

func (o *fakeObjects) putRevision(ref volume.Ref, revision volume.Revision, pairs ...string) {
	o.locked(func() { o.revisions[ref] = revision })
	o.put(ref, pairs...)
}

func (o *fakeObjects) get(ref volume.Ref) *volume.Object {
	return get(&o.guard, func() *volume.Object { return o.objects[ref] })
}

func (o *fakeObjects) remove(ref volume.Ref) { o.set(ref, func() { delete(o.objects, ref) }) }

// replace makes an object appear as it is given.
func (o *fakeObjects) replace(object *volume.Object) {
	o.set(object.Ref, func() { o.objects[object.Ref] = object })
}

// failWith makes reads of an object fail, until err is nil.
func (o *fakeObjects) failWith(ref volume.Ref, err error) {
	o.set(ref, func() { o.failures[ref] = err })
}

func (o *fakeObjects) set(ref volume.Ref, change func()) {
	var tell func(volume.ServiceAccount, volume.Ref)
	o.locked(func() {
		o.version++
		change()
		tell = o.subscriber
	})
	tell(volume.ServiceAccount{}, ref)
}

// registrations returns what each pod has registered.
func (o *fakeObjects) registrations() map[string][]volume.Ref {
	return get(&o.guard, func() map[string][]volume.Ref { return maps.Clone(o.registered) })
}

// forgetPods simulates the end of the manager's process.
func (o *fakeObjects) forgetPods() {
	o.locked(func() {
		clear(o.registered)
		clear(o.kept)
	})
}

// endless is a time in which a read of a pod gets no answer.
const endless = 1000 * time.Hour

// fakePods is an API server with the pods whose volumes were published, and the environment of every container. Its methods are safe for
// concurrent use.
type fakePods struct {
	guard
	pods    map[types.UID]*pod.Spec
	env     volume.Env
	leftOut []string
	// named are the objects that every pod's spec names, and shown has what the volumes of every pod show.
	named []volume.Ref
	shown map[string][]volume.Source
	// errs are the errors of reads of single pods, err is that of all reads, and unusable that of a pod that was read.
	errs          map[types.UID]error
	err, unusable error
	reads         []string
	// slow is how long a read takes.
	slow time.Duration
}

func newFakePods() *fakePods {
	return &fakePods{pods: map[types.UID]*pod.Spec{}, errs: map[types.UID]error{}}
}

// add adds a pod with the volume of a request.
func (f *fakePods) add(r binding.Request) {
	f.locked(func() {
		delete(f.errs, r.Pod.UID)
		f.pods[r.Pod.UID] = &pod.Spec{Pod: r.Pod, FSGroup: r.FSGroup, Inline: map[string]pod.InlineVolume{
			"settings": {Driver: testDriver, Attributes: r.Attributes, ReadOnly: r.ReadOnly},
		}}
	})
}

// fail makes a pod unreadable. errNoPod removes it.
func (f *fakePods) fail(r binding.Request, err error) { f.locked(func() { f.errs[r.Pod.UID] = err }) }

func (f *fakePods) removeAll() {
	f.locked(func() {
		for uid := range f.pods {
			f.errs[uid] = errNoPod
		}
	})
}

// change changes what a pod's spec says.
func (f *fakePods) change(r binding.Request, change func(*pod.Spec)) {
	f.locked(func() { change(f.pods[r.Pod.UID]) })
}

func (f *fakePods) Get(ctx context.Context, asked volume.Pod) (*pod.Spec, error) {
	var slow time.Duration
	f.locked(func() { f.reads, slow = append(f.reads, asked.Name), f.slow })
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	got, known := &pod.Spec{Pod: asked}, f.pods[asked.UID]
	switch {
	case f.err != nil:
		return nil, f.err
	case f.errs[asked.UID] != nil:
		return nil, f.errs[asked.UID]
	case known != nil && known.Name != asked.Name:
		return nil, errNoPod
	case known != nil:
		*got = *known
	}
	got.Refs = f.named
	env, leftOut, err, shown := f.env, f.leftOut, f.unusable, f.shown
	got.Env = func(string) (volume.Env, []string, error) { return env, leftOut, err }
	got.VolumeSources = func(name string) ([]volume.Source, error) { return shown[name], err }
	return got, nil
}

func (f *fakePods) setSlow(slow time.Duration) { f.locked(func() { f.slow = slow }) }

func (f *fakePods) set(env volume.Env, err error, leftOut ...string) {
	f.locked(func() { f.env, f.err, f.leftOut = env, err, leftOut })
}

// show sets what a volume of every pod shows, name which objects every pod's spec names, and spoil makes the pods that were read unusable.
func (f *fakePods) show(name string, sources ...volume.Source) {
	f.locked(func() { f.shown = map[string][]volume.Source{name: sources} })
}

func (f *fakePods) name(refs ...volume.Ref) { f.locked(func() { f.named = refs }) }
func (f *fakePods) spoil(err error)         { f.locked(func() { f.unusable = err }) }

// takeReads returns which pods were requested, and forgets that.
func (f *fakePods) takeReads() (reads string) {
	f.locked(func() { reads, f.reads = strings.Join(f.reads, " "), nil })
	return reads
}
