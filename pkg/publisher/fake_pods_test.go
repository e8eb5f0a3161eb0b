package publisher

import (
	"context"
	"errors"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// endless is a time in which a read of a pod gets no answer.
const endless = 1000 * time.Hour

// fakePods is an API server with the pods whose volumes were published, and the environment of every container. Its methods are safe for
// concurrent use.
type fakePods struct {
	guard
	pods    map[types.UID]*pod.Spec
	removed map[types.UID]bool
	// refused has the pods that may not be read.
	refused map[types.UID]bool
	env     volume.Env
	leftOut []string
	// named are the objects that every pod's spec names.
	named []volume.Ref
	// shown has what the volumes of every pod show.
	shown map[string][]volume.Source
	// err is the error of a read, unusable that of a pod that was read.
	err, unusable error
	reads         []string
	// slow is how long a read takes.
	slow time.Duration
}

// add adds a pod with the volume of a request.
func (f *fakePods) add(r binding.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods == nil {
		f.pods, f.removed = map[types.UID]*pod.Spec{}, map[types.UID]bool{}
	}
	delete(f.removed, r.Pod.UID)
	f.pods[r.Pod.UID] = &pod.Spec{Pod: r.Pod, FSGroup: r.FSGroup, Inline: map[string]pod.InlineVolume{
		"settings": {Driver: testDriver, Attributes: r.Attributes, ReadOnly: r.ReadOnly},
	}}
}

// refuse makes a pod unreadable.
func (f *fakePods) refuse(r binding.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused == nil {
		f.refused = map[types.UID]bool{}
	}
	f.refused[r.Pod.UID] = true
}

// remove removes a pod.
func (f *fakePods) remove(r binding.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, r.Pod.UID)
	f.removed[r.Pod.UID] = true
}

func (f *fakePods) removeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uid := range f.pods {
		f.removed[uid] = true
	}
	clear(f.pods)
}

// change changes what a pod's spec says.
func (f *fakePods) change(r binding.Request, change func(*pod.Spec)) {
	f.locked(func() { change(f.pods[r.Pod.UID]) })
}

func (f *fakePods) Get(ctx context.Context, asked volume.Pod) (*pod.Spec, error) {
	f.mu.Lock()
	f.reads = append(f.reads, asked.Name)
	slow := f.slow
	f.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	if f.removed[asked.UID] {
		return nil, errNoPod
	}
	if f.refused[asked.UID] {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, asked.Name, errors.New("no"))
	}
	got := &pod.Spec{Pod: asked}
	if known := f.pods[asked.UID]; known != nil {
		if known.Name != asked.Name {
			return nil, errNoPod
		}
		copied := *known
		got = &copied
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

// show sets what a volume of every pod shows.
func (f *fakePods) show(name string, sources ...volume.Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown = map[string][]volume.Source{name: sources}
}

// name adds objects that every pod's spec names.
func (f *fakePods) name(refs ...volume.Ref) { f.locked(func() { f.named = refs }) }

// spoil makes the pods that were read unusable.
func (f *fakePods) spoil(err error) { f.locked(func() { f.unusable = err }) }

// takeReads returns which pods were requested, and forgets that.
func (f *fakePods) takeReads() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	reads := strings.Join(f.reads, " ")
	f.reads = nil
	return reads
}
