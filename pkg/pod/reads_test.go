package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// podServer answers reads after a time, with err, or with the pod for which it was asked. It answers a thousand reads at most.
type podServer struct {
	takes time.Duration

	mu       sync.Mutex
	err      error
	asked    []time.Time
	inFlight int
	changed  []types.UID
}

func (s *podServer) get(ctx context.Context, pod volume.Pod) (*Spec, error) {
	if !reflect.DeepEqual(requests.MetaOf(ctx).For, requests.For(pod.UID)) {
		return nil, errors.New("the read does not wait for the pod's turn")
	}
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	s.inFlight++
	takes := s.takes
	if len(s.asked) > 1000 {
		takes = 24 * time.Hour
	}
	s.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	if err := cmp.Or(ctx.Err(), s.err); err != nil {
		return nil, err
	}
	return &Spec{Pod: pod}, nil
}

func (s *podServer) note(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(s.changed, uid)
}

// state waits until everything is idle, and returns how many reads were sent, how many of them are in flight, and how many have ended.
func (s *podServer) state() (asked, inFlight, ended int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked), s.inFlight, len(s.changed)
}

// answer changes the answers, and waits for a time.
func (s *podServer) answer(err error, d time.Duration) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	<-time.After(d)
}

// withReads runs a test with fake time and a server, and starts reads with it. end ends them and waits for that; it may be called twice.
func withReads(t *testing.T, s *podServer, test func(t *testing.T, r *Reads, end func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := NewReads(s.get, s.note)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			r.Run(ctx)
			close(done)
		}()
		synctest.Wait()
		end := func() {
			cancel()
			<-done
		}
		defer end()
		test(t, r, end)
	})
}

// All volumes of a pod share one read of it, also if some of them don't know its account. A read is forgotten when all its volumes have the
// pod.
func TestReadsAPodOnce(t *testing.T) {
	for name, urgent := range map[string]bool{"a publish waits": true, "no publish waits": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &podServer{}
				r := NewReads(s.get, s.note)
				without := testPod
				without.ServiceAccount = ""
				for i, pod := range []volume.Pod{testPod, without} {
					if spec, err := r.Get(pod, fmt.Sprint(i), urgent); spec != nil || !errors.Is(err, ErrPending) {
						t.Errorf("before Run: got %+v, %v", spec, err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go r.Run(ctx)
				synctest.Wait()
				for i, pod := range []volume.Pod{testPod, without} {
					if spec, err := r.Get(pod, fmt.Sprint(i), urgent); err != nil || spec == nil || spec.Name != testPod.Name {
						t.Errorf("volume %d: got %+v, %v", i, spec, err)
					}
				}
				if asked, _, ended := s.state(); asked != 1 || ended != 1 || s.changed[0] != testPod.UID {
					t.Errorf("%d reads, and the signals %q", asked, s.changed)
				}
				_, err := r.Get(testPod, "0", urgent)
				expect.Is(t, "later", err, ErrPending)
				if asked, _, _ := s.state(); asked != 2 {
					t.Errorf("%d reads for a volume that came later", asked)
				}
			})
		})
	}
}

// A failed read is repeated while a volume waits, neither all the time nor after long pauses, and more often if a publish waits. The volume
// learns of the last failure, and of the pod without another question in between.
func TestReadsRepeat(t *testing.T) {
	proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", corev1.Resource("pods"), "web-0", "page not found", 0, true)
	for name, test := range map[string]struct {
		urgent  bool
		err     error
		longest time.Duration
	}{
		"a publish waits":      {true, errors.New("connection refused"), 10 * time.Second},
		"no publish waits":     {false, errors.New("connection refused"), time.Minute},
		"a proxy knows no URL": {false, proxy, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := &podServer{err: test.err}
			withReads(t, s, func(t *testing.T, r *Reads, _ func()) {
				_, _ = r.Get(testPod, "v", test.urgent)
				<-time.After(10 * time.Minute)
				_, err := r.Get(testPod, "v", test.urgent)
				expect.Is(t, "while it fails", err, test.err)
				asked, _, ended := s.state()
				if asked > 200 || asked != ended {
					t.Errorf("%d reads in ten minutes, of which %d have ended", asked, ended)
				}
				s.answer(nil, test.longest)
				if now, _, _ := s.state(); now != asked+1 {
					t.Errorf("%d more reads until the first success", now-asked)
				}
				for i := range s.asked[1:] {
					expect.Between(t, fmt.Sprint("pause ", i), s.asked[i+1].Sub(s.asked[i]), 0, test.longest)
				}
				if spec, err := r.Get(testPod, "v", test.urgent); err != nil || spec == nil {
					t.Errorf("got %+v, %v", spec, err)
				}
			})
		})
	}
}

// A publish doesn't wait for the end of a pause that began when no publish waited, unless the API server has asked for the pause. After that
// the pod isn't read more often than for any publish.
func TestReadsWhenAPublishComes(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		atOnce int
	}{
		"out of reach": {errors.New("connection refused"), 1},
		"busy":         {apierrors.NewTooManyRequests("later", 50), 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := &podServer{err: test.err}
			withReads(t, s, func(t *testing.T, r *Reads, _ func()) {
				_, _ = r.Get(testPod, "bound", false)
				<-time.After(10 * time.Minute)
				asked, _, _ := s.state()
				for range 2 {
					_, _ = r.Get(testPod, "bound", false)
					_, _ = r.Get(testPod, "new", true)
					if now, _, _ := s.state(); now != asked+test.atOnce {
						t.Errorf("%d reads for a publish, want %d", now-asked, test.atOnce)
					}
				}
				<-time.After(10 * time.Minute)
				shortest, asked := max(urgentPause, requests.RetryAfter(test.err)), asked+test.atOnce
				if now, _, _ := s.state(); now < asked+8 {
					t.Errorf("%d reads in ten minutes", now-asked)
				}
				for i := asked; i < len(s.asked); i++ {
					if pause := s.asked[i].Sub(s.asked[i-1]); pause < shortest && i > asked {
						t.Errorf("pause %d is %s", i-asked, pause)
					}
				}
			})
		})
	}
}

// A pod that doesn't exist is an answer: its read is not repeated.
func TestReadsOfNoPod(t *testing.T) {
	s := &podServer{err: fmt.Errorf("read: %w", apierrors.NewNotFound(corev1.Resource("pods"), "web-0"))}
	withReads(t, s, func(t *testing.T, r *Reads, _ func()) {
		_, _ = r.Get(testPod, "v", true)
		<-time.After(time.Hour)
		expect.Equal(t, "reads, and those in flight and ended", fmt.Sprint(s.state()), "1 0 1")
		if spec, err := r.Get(testPod, "v", true); spec != nil || !apierrors.IsNotFound(err) {
			t.Errorf("got %+v, %v", spec, err)
		}
	})
}

// A read ends with the last volume that waits for it, in flight or between two tries, and not before.
func TestReadsForget(t *testing.T) {
	for name, s := range map[string]*podServer{
		"in flight":  {takes: time.Hour},
		"in a pause": {err: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			withReads(t, s, func(t *testing.T, r *Reads, _ func()) {
				_, _ = r.Get(testPod, "a", false)
				_, _ = r.Get(testPod, "b", false)
				r.Forget("a")
				r.Forget("other")
				before, inFlight, _ := s.state()
				<-time.After(2 * time.Minute)
				if now, still, _ := s.state(); now == before && still == 0 || still != inFlight {
					t.Errorf("the read has ended with a volume that waits: %d reads, %d in flight", now, still)
				}
				r.Forget("b")
				asked, inFlight, _ := s.state()
				<-time.After(time.Hour)
				if now, _, _ := s.state(); now != asked || inFlight != 0 {
					t.Errorf("without a volume: %d more reads, %d in flight", now-asked, inFlight)
				}
			})
		})
	}
}

// Many pods are not read at the same time, because each may need megabytes; yet a publish of another pod waits for none of them. None is read after Run.
func TestReadsAtOnce(t *testing.T) {
	s := &podServer{takes: time.Hour}
	withReads(t, s, func(t *testing.T, r *Reads, end func()) {
		get := func(from, n int, urgent bool) (inFlight int) {
			for i := range n {
				pod := volume.Pod{Namespace: "ns", Name: fmt.Sprint(from + i), UID: types.UID(fmt.Sprint(from + i))}
				_, _ = r.Get(pod, pod.Name, urgent)
			}
			_, inFlight, _ = s.state()
			return inFlight
		}
		ordinary := get(0, 100, false)
		if ordinary == 0 || ordinary > 50 {
			t.Errorf("%d of 100 reads are in flight", ordinary)
		}
		expect.Equal(t, "reads in flight, with one for a publish", get(100, 1, true), ordinary+1)
		all := get(101, 100, true)
		if all <= ordinary || all > 50 {
			t.Errorf("%d reads are in flight with publishes that wait", all)
		}
		<-time.After(time.Hour)
		if asked, _, ended := s.state(); asked <= all || ended != all {
			t.Errorf("after an hour %d reads were sent, and %d have ended, not %d", asked, ended, all)
		}
		end()
		asked, _, _ := s.state()
		<-time.After(time.Hour)
		if now, inFlight, _ := s.state(); now != asked || inFlight != 0 {
			t.Errorf("after Run: %d reads more, %d in flight", now-asked, inFlight)
		}
		_, err := r.Get(testPod, "v", true)
		expect.Is(t, "after Run", err, ErrPending)
	})
}
