package golden_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/receipts"
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
	// resyncs counts calls of Refresh.
	resyncs int
	// registered says that they are kept for the volume.
	registered bool
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

func (o *objects) counts() (resyncs int, registered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.resyncs, o.registered
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

func (o *objects) RegisterPod(volume.Pod, string, []volume.Ref) { o.register(true) }
func (o *objects) UnregisterPod(volume.Pod, string)             { o.register(false) }

func (o *objects) register(registered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.registered = registered
}

func (*objects) ReadAgain(volume.Pod, []volume.Ref) {}

func (o *objects) Refresh(volume.Pod, []volume.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resyncs++
}

func (o *objects) MarkMounted(volume.Pod, string)         {}
func (o *objects) DenialErr(volume.Pod, volume.Ref) error { return nil }
func (o *objects) OnNewCredential(volume.ServiceAccount)  {}

// pods is an API server that knows one pod, with its volume.
type pods struct{ g *golden }

func (p pods) Get(context.Context, volume.Pod) (*pod.Spec, error) {
	return &pod.Spec{Pod: p.g.Pod, FSGroup: p.g.FSGroup, Inline: map[string]pod.InlineVolume{
		p.g.Name: {Driver: driver, Attributes: p.g.Attributes, ReadOnly: true},
	}}, nil
}

// opens has the test say which files were opened. It is safe for concurrent use.
type opens struct {
	mu   sync.Mutex
	told func(ids []string)
}

// open says that a file was opened.
func (o *opens) open(path string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	id, err := o.ID(unix.AT_FDCWD, path)
	if err == nil {
		o.told([]string{id})
	}
	return err
}

func (o *opens) Watch(_ int, _ string, told func(ids []string), _ func(error)) (stop func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = told
	return func() {}, nil
}

func (o *opens) Unmark(int) error { return nil }

func (o *opens) ID(dir int, path string) (string, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, path, &st, unix.AT_EMPTY_PATH)
	return strconv.FormatUint(st.Ino, 10), err
}

func (o *opens) Drain(time.Duration) error             { return nil }
func (o *opens) Ignore(int) (receipts.Position, error) { return 0, nil }
func (o *opens) HasReported(receipts.Position) bool    { return false }
func (o *opens) Listen(int) error                      { return nil }

// writes counts writes that changed files. It is safe for concurrent use.
type writes struct {
	mu      sync.Mutex
	changed int
}

func (w *writes) RecordWrite(changed bool, _ int64, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if changed {
		w.changed++
	}
}

func (w *writes) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *writes) Propagated(time.Duration) {}
func (w *writes) Opened(time.Duration)     {}
