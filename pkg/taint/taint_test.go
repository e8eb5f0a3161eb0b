package taint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "csi.example.org/agent-not-ready"

// fakeNodes has one Node, and fails as often as it is told to. Each patch removes all taints here. Real patches are tested with a real API
// server.
type fakeNodes struct {
	mu       sync.Mutex
	taints   []corev1.Taint
	getFails []error
	fails    []error
	takes    time.Duration
	requests []time.Time
	patches  []string
}

func (f *fakeNodes) answerIn(takes time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes = takes
}

func (f *fakeNodes) wait(ctx context.Context) error {
	f.mu.Lock()
	answered := time.After(f.takes)
	f.mu.Unlock()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *fakeNodes) Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if opts.ResourceVersion != "0" {
		return nil, errors.New("the request is not for the API server's cache")
	}
	f.requests = append(f.requests, time.Now())
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, errors.New("the request may last for ever")
	}
	if len(f.getFails) > 0 {
		err := f.getFails[0]
		f.getFails = f.getFails[1:]
		return nil, err
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"}, Spec: corev1.NodeSpec{Taints: slices.Clone(f.taints)}}, nil
}

func (f *fakeNodes) Patch(_ context.Context, name string, form types.PatchType, data []byte, _ metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name != "node-1" || form != types.JSONPatchType || len(sub) > 0 {
		return nil, errors.New("this is no patch of the Node's spec")
	}
	f.patches = append(f.patches, string(data))
	if len(f.fails) > 0 {
		err := f.fails[0]
		f.fails = f.fails[1:]
		return nil, err
	}
	f.taints = nil
	return &corev1.Node{}, nil
}

func tainted() *fakeNodes {
	return &fakeNodes{taints: []corev1.Taint{{Key: testKey, Effect: corev1.TaintEffectNoSchedule}}}
}

func (f *fakeNodes) add() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taints = tainted().taints
}

func (f *fakeNodes) tainted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.taints) > 0
}

// run runs a Remover in the test's bubble until the context or the test ends, and returns its log.
func run(ctx context.Context, t *testing.T, nodes Nodes) (*Remover, *bytes.Buffer) {
	t.Helper()
	r := must.Get(NewRemover(nodes, "node-1", testKey))(t)
	log := &bytes.Buffer{}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log), textlogger.Verbosity(10)))
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r, log
}

// pass lets time pass in the test's bubble, and everything that happens in it.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func wantLogged(t *testing.T, log *bytes.Buffer, text string, count int) {
	t.Helper()
	if got := strings.Count(log.String(), text); got != count {
		t.Errorf("%q was logged %d times, want %d:\n%s", text, got, count, log)
	}
}

// wantPauses fails the test unless the pauses between requests double up to the longest.
func wantPauses(t *testing.T, requests []time.Time) {
	t.Helper()
	shortest := firstLook
	for i := 1; i < len(requests); i++ {
		expect.Between(t, fmt.Sprintf("the pause before request %d", i), requests[i].Sub(requests[i-1]), shortest, lastLook*6/5)
		shortest = min(2*shortest, lastLook)
	}
}

func TestTriesUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := tainted()
		failure := errors.New("no such luck")
		nodes.getFails = slices.Repeat([]error{failure}, 10)
		nodes.fails = slices.Repeat([]error{failure}, 10)
		r, log := run(t.Context(), t, nodes)
		r.SetRegistered(true)
		pass(30 * time.Minute)
		if len(nodes.requests) < 21 || len(nodes.patches) != 11 || len(nodes.taints) > 0 {
			t.Errorf("%d requests, %d patches, taints %v", len(nodes.requests), len(nodes.patches), nodes.taints)
		}
		wantLogged(t, log, "Removing the startup taint failed, trying again", 1)
		wantLogged(t, log, "Removed the startup taint", 1)
		wantLogged(t, log, "The node has no startup taint", 0)
		wantPauses(t, nodes.requests[:21])
	})
}

// A request that gets no answer is given up and tried again. An answer that takes some seconds is awaited.
func TestSlowAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := tainted()
		nodes.answerIn(24 * time.Hour)
		r, log := run(t.Context(), t, nodes)
		r.SetRegistered(true)
		pass(5 * time.Minute)
		if !nodes.tainted() {
			t.Error("the taint was removed without an answer")
		}
		wantLogged(t, log, "Removing the startup taint failed, trying again", 1)
		nodes.answerIn(3 * time.Second)
		pass(5 * time.Minute)
		if nodes.tainted() {
			t.Error("the taint is still there")
		}
	})
}

// A cloud's node pool manager may add the taint after the registration. The Node is read again for a while, with growing pauses, and then
// no more.
func TestTaintAfterTheRegistration(t *testing.T) {
	for _, late := range []time.Duration{0, 3 * time.Second, time.Minute, lookFor - lastLook - 10*time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := &fakeNodes{}
				r, log := run(t.Context(), t, nodes)
				r.SetRegistered(true)
				pass(late)
				nodes.add()
				// Pauses double, so the next look comes within the time that has passed already.
				pass(min(late+firstLook, lastLook) * 6 / 5)
				if nodes.tainted() {
					t.Error("the taint is still there")
				}
				pass(lookFor)
				wantLogged(t, log, "The node has no startup taint", 1)
				wantLogged(t, log, "Removed the startup taint", 1)
				wantLogged(t, log, "failed", 0)
			})
		})
	}
}

// The looks end. A Node that gets the taint later keeps it until the next registration.
func TestLooksEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := &fakeNodes{}
		r, _ := run(t.Context(), t, nodes)
		for range 3 {
			nodes.requests = nil
			began := time.Now()
			r.SetRegistered(true)
			pass(time.Hour)
			if nodes.tainted() { // since the last look
				t.Error("a registration has removed nothing")
			}
			last := nodes.requests[len(nodes.requests)-1].Sub(began)
			if n := len(nodes.requests); n < 20 || n > 30 || last > lookFor || last < lookFor-time.Minute {
				t.Errorf("%d looks, the last after %v", n, last)
			}
			wantPauses(t, nodes.requests)
			nodes.add()
			pass(time.Hour)
			if !nodes.tainted() {
				t.Error("it went on looking")
			}
		}
	})
}

// A refused registration, or the end of the context, ends the attempts and the looks.
func TestStopsTrying(t *testing.T) {
	for name, stop := range map[string]func(r *Remover, cancel func()){
		"refused": func(r *Remover, _ func()) { r.SetRegistered(false) },
		"stopped": func(_ *Remover, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := tainted()
				nodes.fails = slices.Repeat([]error{errors.New("no such luck")}, 1000)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r, _ := run(ctx, t, nodes)
				r.SetRegistered(true)
				pass(5 * time.Minute)
				tries := len(nodes.patches)
				if tries < 5 {
					t.Fatalf("%d tries", tries)
				}
				stop(r, cancel)
				pass(5 * time.Minute)
				expect.Equal(t, "tries after the end", len(nodes.patches), tries)
			})
		})
	}
}

// The patch keeps all other taints in their order, and applies to one state of the Node.
func TestPatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := &fakeNodes{taints: []corev1.Taint{
			{Key: "a", Value: "1", Effect: corev1.TaintEffectNoExecute},
			{Key: testKey, Value: "x", Effect: corev1.TaintEffectNoSchedule},
			{Key: "b", Effect: corev1.TaintEffectNoSchedule},
			{Key: testKey, Effect: corev1.TaintEffectNoExecute},
		}}
		r, _ := run(t.Context(), t, nodes)
		r.SetRegistered(true)
		synctest.Wait()
		want := `[{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"replace","path":"/spec/taints","value":[{"key":"a","value":"1","effect":"NoExecute"},{"key":"b","effect":"NoSchedule"}]}]`
		expect.Equal(t, "patches", nodes.patches, []string{want})
	})
}
