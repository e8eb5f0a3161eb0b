package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"go.uber.org/goleak"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testResync = time.Minute
	// maxBackoff is the longest pause of one object.
	maxBackoff = 30 * time.Second
	answerTime = requests.AnswerTimeout
	testNode   = "node-1"
)

// env is a manager, its API server, and a record of the calls of its subscriber.
type env struct {
	*Manager
	detection ChangeDetection

	t    *testing.T
	api  *apiServer
	stop func() // ends Run and waits for it

	mu    sync.Mutex
	heard map[volume.Ref]int
	// reader is the pod that reads, or the zero Pod if none is registered.
	reader volume.Pod
	// changed is closed and replaced when the subscriber is called.
	changed chan struct{}
}

// GetObject reads for the reader. Without accounts, the manager's knowledge is the same for every pod that is not new.
func (e *env) GetObject(ref volume.Ref) (*volume.Object, error) {
	return e.Manager.GetObject(e.reader, ref)
}

func (e *env) DenialErr(ref volume.Ref) error { return e.Manager.DenialErr(volume.Pod{}, ref) }

func (e *env) Refresh(refs []volume.Ref) { e.Manager.Refresh(volume.Pod{}, refs) }

// Subscribe is the Manager's. await is notified of the changes too.
func (e *env) Subscribe(fn func(volume.ServiceAccount, volume.Ref)) {
	e.Manager.Subscribe(func(account volume.ServiceAccount, ref volume.Ref) {
		fn(account, ref)
		e.mu.Lock()
		defer e.mu.Unlock()
		close(e.changed)
		e.changed = make(chan struct{})
	})
}

// await reads ref for a pod until it is synced, as a publish does: again after each call of the subscriber. When ctx ends, it returns the error
// of the last read.
func (e *env) await(ctx context.Context, pod volume.Pod, ref volume.Ref) (*volume.Object, error) {
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		obj, err := e.Manager.GetObject(pod, ref)
		if !errors.Is(err, ErrNotSynced) || errors.Is(err, errShutdown) {
			return obj, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return e.Manager.GetObject(pod, ref)
		}
	}
}

// soon is await for ten seconds.
func (e *env) soon(pod volume.Pod, ref volume.Ref) (*volume.Object, error) {
	ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Second)
	defer cancel()
	return e.await(ctx, pod, ref)
}

// inBubble runs test in a synctest bubble with a running manager that watches.
func inBubble(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	inBubbleWith(t, Options{ChangeDetection: Watch}, test)
}

// inBubbleWith is like inBubble, with other options. The bubble fails if a goroutine outlives the manager.
func inBubbleWith(t *testing.T, opts Options, test func(t *testing.T, e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, opts)
		test(t, e)
		e.stop()
	})
}

// inEachBubble is like inBubble, as a subtest for each change detection.
func inEachBubble(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	inBubbles(t, Options{}, all, test)
}

// all are the change detections, and polls those without a watch.
var (
	all   = []ChangeDetection{Watch, Cache, Get}
	polls = all[1:]
)

func inBubbles(t *testing.T, opts Options, detections []ChangeDetection, test func(t *testing.T, e *env)) {
	t.Helper()
	for _, opts.ChangeDetection = range detections {
		t.Run(string(opts.ChangeDetection), func(t *testing.T) { inBubbleWith(t, opts, test) })
	}
}

// newEnv returns a running manager with the change detection, accounts, refusals and cache of opts. All accounts have a token.
func newEnv(t *testing.T, opts Options) *env {
	t.Helper()
	e := &env{detection: opts.ChangeDetection, t: t, api: newAPIServer(t), heard: map[volume.Ref]int{}, changed: make(chan struct{})}
	own := e.api.client() // a client takes long to make with the race detector
	opts.Client, opts.Requests, opts.Nodes = own, e.api.paced, own.Nodes()
	opts.ResyncInterval, opts.NodeName = testResync, testNode
	e.Manager = must.Get(New(opts))(t)
	e.Subscribe(func(_ volume.ServiceAccount, ref volume.Ref) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.heard[ref]++
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(e.stop)
	return e
}

// changes waits until everything is idle, and returns how often the subscriber was called for ref since the last call.
func (e *env) changes(ref volume.Ref) int {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.heard[ref]
	e.heard[ref] = 0
	return n
}

func (e *env) wantGet(ref volume.Ref, version volume.Version, value string) {
	e.t.Helper()
	obj, err := e.soon(volume.Pod{}, ref)
	if err != nil {
		e.t.Fatalf("GetObject(%s): %v", ref, err)
	}
	if obj.Ref != ref || obj.Version != version || string(obj.Data["k"]) != value {
		e.t.Errorf("GetObject(%s): got %v with %q, want %v with %q", ref, obj, obj.Data["k"], version, value)
	}
}

func (e *env) wantNotFound(ref volume.Ref) {
	e.t.Helper()
	if obj, err := e.soon(volume.Pod{}, ref); !apierrors.IsNotFound(err) {
		e.t.Errorf("GetObject(%s): got %v, %v, want NotFound", ref, obj, err)
	}
}

func (e *env) wantGetErr(ref volume.Ref, want error) {
	e.t.Helper()
	if obj, err := e.GetObject(ref); !errors.Is(err, want) {
		e.t.Errorf("GetObject(%s): got %v, %v, want error %v", ref, obj, err, want)
	}
}

func (e *env) item(ref volume.Ref) *item { return e.find(volume.Pod{}, ref) }

// wantWatches waits until everything is idle, and counts the open watches of ref. With a change detection other than Watch there must be
// none.
func (e *env) wantWatches(ref volume.Ref, want int) {
	e.t.Helper()
	synctest.Wait()
	if e.detection != Watch {
		want = 0
	}
	if got := e.api.watches(ref); got != want {
		e.t.Errorf("%d watches of %s are open, want %d", got, ref, want)
	}
}

// after lets d pass, and everything that happens in that time.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func pod(uid string) volume.Pod {
	return volume.Pod{Namespace: "ns", Name: "pod", UID: types.UID(uid)}
}

func secretRef(name string) volume.Ref {
	return volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: name}
}

func configMapRef(name string) volume.Ref {
	return volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: name}
}

// secret returns a Secret with one key, "k", and all the metadata of a real one.
func secret(name, value string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: typeMeta(volume.Secret),
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name,
			Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: fmt.Sprintf(`{"data":{"k":%q}}`, value)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{}`)}},
		},
		Data: map[string][]byte{"k": []byte(value)},
	}
}

func immutableSecret(name, value string) *corev1.Secret {
	s := secret(name, value)
	yes := true
	s.Immutable = &yes
	return s
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   typeMeta(volume.ConfigMap),
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Data:       map[string]string{"k": value},
	}
}

func objectOf(t *testing.T, obj runtime.Object) *volume.Object {
	t.Helper()
	return must.Get(convert(obj))(t)
}
