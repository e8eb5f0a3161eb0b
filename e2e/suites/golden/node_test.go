package golden_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	driver = "csi.refvol.dev"
	// waitTime is far more than anything takes here.
	waitTime = 30 * time.Second
)

// node is a node with the pod of one volume: a real Publisher on real mounts.
type node struct {
	*testing.T
	g                  *golden
	kubeletDir, target string
	objects            *objects
	opens              *fakenode.Opens
	writes             *writes
	p                  *publisher.Publisher
}

// newNode makes a node on which no plugin runs yet. Its objects are those that the volume shows.
func newNode(t *testing.T, g *golden) *node {
	t.Helper()
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	n := &node{
		T: t, g: g, kubeletDir: dir,
		target:  filepath.Join(dir, "pods", string(g.Pod.UID), "volumes/kubernetes.io~csi", g.Name, "mount"),
		objects: &objects{state: g.Objects, refused: g.Refused}, opens: fakenode.NewOpens(), writes: &writes{},
	}
	must.Do(t, os.MkdirAll(filepath.Dir(n.target), 0o755))
	t.Cleanup(func() { _ = unix.Unmount(n.target, unix.MNT_DETACH) }) // of a test that failed
	return n
}

// start starts the plugin, which finds what is mounted. It stops at the test's end.
func (n *node) start() {
	n.Helper()
	ctx := n.ctx()
	mounter, err := mount.New(ctx, mount.Options{Driver: driver, KubeletDir: n.kubeletDir})
	must.Do(n.T, err)
	n.p, err = publisher.New(publisher.Options{
		Options: binding.Options{
			Objects: n.objects, Pods: pods{n.g}, KubeletDir: n.kubeletDir, Driver: driver, ResyncInterval: 200 * time.Millisecond,
			Rights: binding.Rights{CrossNamespace: true, Reviews: &access.Reviews{Ask: n.objects.ask, Verbs: []string{"get"}}},
		},
		Mounts:          publisher.NewMounts(mounter),
		AttributePrefix: mounter.AttributePrefix(),
		Opens:           n.opens,
		Observer:        n.writes,
		NodeName:        "node-1",
		PublishWait:     waitTime,
		MaxVolumeSize:   1 << 20,
		MaxTotalSize:    1 << 24,
	})
	must.Do(n.T, err)
	must.Do(n.T, n.p.Restore(ctx))
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { n.p.Run(ctx); close(ended) }()
	n.Cleanup(func() { cancel(); <-ended })
}

// ctx returns a context that outlives the test, for the end of the plugin.
func (n *node) ctx() context.Context {
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(n.Output()), textlogger.Verbosity(4)))
	return klog.NewContext(context.WithoutCancel(n.Context()), logger)
}

// eventually waits until f returns nil.
func (n *node) eventually(f func() error) {
	n.Helper()
	harness.Eventually(n, waitTime, f)
}

// status returns what is known of the volume.
func (n *node) status() (status publisher.VolumeStatus) {
	for v := range n.p.Volumes {
		status = v
	}
	return status
}

// shows returns nil once all files are known to show a state of the objects, and the volume is in a condition, "" for any.
func (n *node) shows(s state, condition publisher.Condition, refused ...string) error {
	v := n.status()
	for name, object := range s {
		if object == nil || slices.Contains(refused, name) {
			continue
		}
		got, other := v.Shown[refOf(name)], v.Absent[refOf(name)]
		if object.Canary == "0%" {
			got, other = other, got
		}
		if got != object.version() || other.UID != "" {
			return fmt.Errorf("%s is shown or absent at %v and %v, want %v; the volume is %s: %s", name, got, other, object.version(), v.Condition, v.Reason)
		}
	}
	if condition != "" && v.Condition != condition {
		return fmt.Errorf("the volume is %s, want %s: %s", v.Condition, condition, v.Reason)
	}
	return nil
}

// isPruned returns nil once there is one generation.
func (n *node) isPruned() error {
	generations, err := filepath.Glob(n.target + "/..2*")
	if err == nil && len(generations) != 1 {
		err = fmt.Errorf("there are the generations %q", generations)
	}
	return err
}

// unpublish has the volume go, as the kubelet does, with all that is kept for it.
func (n *node) unpublish() {
	n.Helper()
	must.Do(n.T, n.p.Unpublish(n.ctx(), n.g.VolumeID, n.target))
	if _, err := os.Lstat(n.target); !errors.Is(err, os.ErrNotExist) {
		n.Errorf("the target is there after the unpublish: %v", err)
	}
	if n.objects.registered.Load() {
		n.Error("its objects are kept after the unpublish")
	}
}

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
