package pod

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// readsWorld is an API server that knows every pod, and counts.
type readsWorld struct {
	*testing.T
	reads *Reads

	mu      sync.Mutex
	err     error
	slow    time.Duration
	asked   []string
	changed []types.UID
	now     int
	most    int
}

// withReads runs a test on fake time.
func withReads(t *testing.T, test func(w *readsWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &readsWorld{T: t}
		w.reads = NewReads(w.get, func(uid types.UID) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed = append(w.changed, uid)
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.reads.Run(ctx); close(ended) }()
		test(w)
		cancel()
		<-ended
	})
}

func (w *readsWorld) get(ctx context.Context, asked volume.Pod) (*Spec, error) {
	w.mu.Lock()
	w.asked = append(w.asked, asked.Name)
	w.now++
	w.most = max(w.most, w.now)
	slow := w.slow
	w.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now--
	if w.err != nil {
		return nil, w.err
	}
	return &Spec{Pod: asked}, ctx.Err()
}

func (w *readsWorld) set(err error, slow time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.slow = err, slow
}

func (w *readsWorld) takeAsked() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := w.asked
	w.asked = nil
	return asked
}

func podNamed(name string) volume.Pod {
	return volume.Pod{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}
}

func (w *readsWorld) wantPending(p volume.Pod, volumeID string, urgent bool) {
	w.Helper()
	if _, err := w.reads.Get(p, volumeID, urgent); !errors.Is(err, ErrPending) {
		w.Errorf("got %v", err)
	}
}

// All volumes of a pod share a read, also those that know its service account. Each takes the answer once; then it is
// forgotten.
func TestVolumesShareARead(t *testing.T) {
	withReads(t, func(w *readsWorld) {
		other := podNamed("a")
		other.ServiceAccount = "web"
		w.wantPending(podNamed("a"), "v1", false)
		w.wantPending(other, "v2", true)
		if got := w.takeAsked(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("asked for %q", got)
		}
		if !slices.Equal(w.changed, []types.UID{"uid-a"}) {
			t.Errorf("told %q", w.changed)
		}
		for _, id := range []string{"v1", "v2"} {
			if spec, err := w.reads.Get(other, id, false); err != nil || spec.Name != "a" {
				t.Errorf("got %v, %v", spec, err)
			}
		}
		w.wantPending(other, "v1", false)
		if got := w.takeAsked(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("asked for %q", got)
		}
	})
}

// There is one read until one was answered, then sixteen, and urgent ones come first.
func TestFewReadsAtOnce(t *testing.T) {
	withReads(t, func(w *readsWorld) {
		w.set(nil, time.Second)
		for i := range 40 {
			w.wantPending(podNamed(string(rune('A'+i))), string(rune('A'+i)), i >= 20)
		}
		synctest.Wait()
		if w.most != 1 {
			t.Errorf("%d at once before an answer", w.most)
		}
		w.takeAsked()
		<-time.After(1500 * time.Millisecond)
		for _, name := range w.takeAsked() {
			if name[0] < 'A'+20 {
				t.Errorf("%s is not urgent", name)
			}
		}
		<-time.After(10 * time.Second)
		if synctest.Wait(); w.most != 16 {
			t.Errorf("%d at once", w.most)
		}
	})
}

// A read that fails is repeated, later each time, while somebody waits, and says why meanwhile. That there is no such pod is
// an answer.
func TestReadsAreRepeated(t *testing.T) {
	withReads(t, func(w *readsWorld) {
		away := errors.New("connection refused")
		w.set(away, 0)
		w.wantPending(podNamed("a"), "v1", false)
		<-time.After(10 * time.Minute)
		if n := len(w.takeAsked()); n < 10 || n > 30 {
			t.Errorf("%d reads in ten minutes", n)
		}
		if _, err := w.reads.Get(podNamed("a"), "v1", false); !errors.Is(err, away) {
			t.Errorf("got %v", err)
		}
		w.reads.Leave("v1")
		<-time.After(10 * time.Minute)
		if n := len(w.takeAsked()); n > 1 {
			t.Errorf("%d reads that nobody waits for", n)
		}

		w.set(apierrors.NewNotFound(corev1.Resource("pods"), "b"), 0)
		w.wantPending(podNamed("b"), "v2", true)
		<-time.After(time.Hour)
		if got := w.takeAsked(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("asked for %q", got)
		}
		if _, err := w.reads.Get(podNamed("b"), "v2", true); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	})
}
