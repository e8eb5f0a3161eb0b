package golden_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// objects is a manager that knows all objects at once, for no server can be told their UIDs and versions, and an API server
// that is asked for rights. It is safe for concurrent use.
type objects struct {
	changed func(volume.ServiceAccount, volume.Ref)

	mu    sync.Mutex
	state state
	// refused are objects that no pod may have.
	refused []string

	// resyncs counts calls of Refresh. registered says that they are kept for the volume.
	resyncs    atomic.Int32
	registered atomic.Bool
}

// set changes objects, and which are refused.
func (o *objects) set(next state, refused ...string) {
	o.mu.Lock()
	o.state, o.refused = next, refused
	o.mu.Unlock()
	for name := range next {
		o.changed(volume.ServiceAccount{}, refOf(name))
	}
}

func (o *objects) Subscribe(changed func(volume.ServiceAccount, volume.Ref)) { o.changed = changed }

func (o *objects) GetObject(_ volume.Pod, ref volume.Ref) (*volume.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := o.state[nameOf(ref)]
	if found == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: ref.Kind.Resource()}, ref.Name)
	}
	object := &volume.Object{Ref: ref, Version: found.version(), Canary: found.Canary, Data: map[string][]byte{}, BinaryData: found.BinaryData}
	for key, value := range found.Data {
		object.Data[key] = []byte(value)
	}
	return object, nil
}

// ask is an authz.Ask.
func (o *objects) ask(_ context.Context, _ volume.ServiceAccount, ref volume.Ref, _ string, _ volume.Token) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !slices.Contains(o.refused, nameOf(ref)), nil
}

func (o *objects) RegisterPod(volume.Pod, string, []volume.Ref) { o.registered.Store(true) }
func (o *objects) UnregisterPod(volume.Pod, string)             { o.registered.Store(false) }
func (o *objects) Refresh(volume.Pod, []volume.Ref)             { o.resyncs.Add(1) }
func (o *objects) ReadAgain(volume.Pod, []volume.Ref)           {}
func (o *objects) MarkMounted(volume.Pod, string)               {}
func (o *objects) DenialErr(volume.Pod, volume.Ref) error       { return nil }
func (o *objects) OnNewCredential(volume.ServiceAccount)        {}

// pods is an API server that knows one pod, with its volume.
type pods struct{ g *golden }

func (p pods) Get(context.Context, volume.Pod) (*pod.Spec, error) {
	return &pod.Spec{Pod: p.g.Pod, FSGroup: p.g.FSGroup, Inline: map[string]pod.InlineVolume{
		p.g.Name: {Driver: driver, Attributes: p.g.Attributes, ReadOnly: true},
	}}, nil
}

// writes counts writes that changed files. It is safe for concurrent use.
type writes struct{ changed atomic.Int32 }

func (w *writes) RecordWrite(changed bool, _ int64, _ error) {
	if changed {
		w.changed.Add(1)
	}
}

func (w *writes) Propagated(time.Duration) {}
func (w *writes) Opened(time.Duration)     {}
