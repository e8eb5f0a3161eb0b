package manager

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/volume"
)

// inPollBubble is like inBubble, as a subtest for each change detection that polls.
func inPollBubble(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	inBubbles(t, Options{}, []ChangeDetection{Cache, Get}, test)
}

// refresh refreshes ref and waits until everything is idle.
func (e *env) refresh(ref volume.Ref) {
	e.Refresh([]volume.Ref{ref})
	synctest.Wait()
}

// known registers ref for a first pod and waits until it is known.
func (e *env) known(ref volume.Ref) {
	e.t.Helper()
	e.RegisterPod(pod("first"), "v", []volume.Ref{ref})
	_, _ = e.GetObject(ref) // on a busy machine, the first answer may have come before
	if n := e.changes(ref); n != 1 {
		e.t.Errorf("heard of %d changes after the first read, want 1", n)
	}
}

// wantKnown checks the version and the value of key "k" in the known state of ref.
func (e *env) wantKnown(ref volume.Ref, version volume.Version, value string) {
	e.t.Helper()
	obj, err := e.GetObject(ref)
	if err != nil || obj.Version != version || string(obj.Data["k"]) != value {
		e.t.Errorf("GetObject(%s): got %v, %v, want %v with %q", ref, obj, err, version, value)
	}
}

// wantAsked checks the gets sent for ref so far by their resourceVersion, and that nothing else was sent.
func (e *env) wantAsked(ref volume.Ref, want ...string) {
	e.t.Helper()
	synctest.Wait()
	var got []string
	for _, r := range e.api.requests(ref) {
		if !r.get {
			e.t.Errorf("sent %+v, want gets only", r)
		}
		got = append(got, r.rv)
	}
	if !slices.Equal(got, want) {
		e.t.Errorf("%s: asked at resourceVersions %q, want %q", ref, got, want)
	}
}

// maxAge is how long Cache keeps an answer.
const maxAge = defaultTTL + time.Second

// TestWhatIsAsked checks which requests a second read sends.
func TestWhatIsAsked(t *testing.T) {
	ref := secretRef("a")
	nothing := func(*env) {}
	for _, tc := range []struct {
		name       string
		between    func(e *env)
		cache, get []string
	}{
		{"at once", nothing, nil, []string{""}},
		{"within the TTL", func(*env) { after(defaultTTL - time.Nanosecond) }, nil, []string{""}},
		{"after the TTL", func(*env) { after(defaultTTL) }, []string{"0"}, []string{""}},
		{"changed within the TTL", func(e *env) { e.api.put(secret("a", "2")) }, nil, []string{""}},
		{"deleted", func(e *env) { after(defaultTTL); e.api.delete(ref) }, []string{"0", ""}, []string{""}},
		{"a failure before", func(e *env) {
			after(defaultTTL)
			e.refuseAll(apierrors.NewInternalError(errors.New("etcd")))
			e.refresh(ref)
			e.refuseAll(nil)
			after(maxPause)
		}, []string{"0", "0"}, []string{"", ""}},
		{"known to be absent", func(e *env) {
			after(defaultTTL)
			e.api.delete(ref)
			e.refresh(ref)
		}, []string{"0", "", ""}, []string{"", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inPollBubble(t, func(t *testing.T, e *env) {
				e.api.put(secret("a", "1"))
				e.known(ref)
				tc.between(e)
				e.refresh(ref)
				want := tc.get
				if e.detection == Cache {
					want = tc.cache
				}
				e.wantAsked(ref, append([]string{""}, want...)...)
			})
		})
	}
}

// TestARegistrationWantsAnAnswerOfItsOwn: an answer arrives that was requested before a pod was registered.
func TestARegistrationWantsAnAnswerOfItsOwn(t *testing.T) {
	ref := secretRef("a")
	for _, tc := range []struct {
		name       string
		register   func(e *env)
		cache, get bool // whether reads wait
	}{
		{"another pod", func(e *env) { e.RegisterPod(pod("second"), "v", []volume.Ref{ref}) }, true, true},
		{"another volume of the pod", func(e *env) { e.RegisterPod(pod("first"), "w", []volume.Ref{ref}) }, false, true},
		{"another object", func(e *env) { e.RegisterPod(pod("second"), "v", []volume.Ref{secretRef("b")}) }, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inPollBubble(t, func(t *testing.T, e *env) {
				old := e.api.put(secret("a", "old"))
				e.known(ref)
				after(maxAge)
				gate := make(chan struct{})
				e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
				e.refresh(ref)
				before := len(e.api.requests(ref))
				held := make(chan struct{})
				e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return held } })
				tc.register(e)
				waits := tc.cache
				if e.detection == Get {
					waits = tc.get
				}
				if !waits {
					e.wantKnown(ref, old, "old")
					close(gate)
					close(held)
					synctest.Wait()
					return
				}
				e.reader = pod("second")
				if tc.cache != tc.get { // it is the same pod
					e.reader = pod("first")
				}
				e.wantGetErr(ref, ErrNotSynced)
				// The answer in flight does not count for this pod, but the next one does.
				close(gate)
				if n := e.changes(ref); n != 0 {
					t.Errorf("heard of %d changes", n)
				}
				e.wantGetErr(ref, ErrNotSynced)
				now := e.api.put(secret("a", "now"))
				close(held)
				if n := e.changes(ref); n != 1 {
					t.Errorf("heard of %d changes, want 1", n)
				}
				e.wantKnown(ref, now, "now")
				if got := e.api.requests(ref)[before:]; len(got) != 1 || got[0].rv != "" {
					t.Errorf("asked %+v, want once, for the present state", got)
				}
			})
		})
	}
}

// TestNewPodsDontStarveEachOther: a request in flight still serves those who wait for it, however many pods come meanwhile.
func TestNewPodsDontStarveEachOther(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.api.set(func() {
			e.api.hold = func(apiRequest) <-chan struct{} {
				answered := make(chan struct{})
				time.AfterFunc(500*time.Millisecond, func() { close(answered) })
				return answered
			}
		})
		for i := range 20 {
			uid := fmt.Sprint("pod-", i)
			e.RegisterPod(pod(uid), "v", []volume.Ref{ref})
			_, _ = e.Manager.GetObject(pod(uid), ref)
			after(400 * time.Millisecond)
			if i < 3 {
				continue
			}
			e.reader = pod(fmt.Sprint("pod-", i-3))
			e.wantKnown(ref, v, "1")
		}
		if n := len(e.api.requests(ref)); n > 25 {
			t.Errorf("%d requests", n)
		}
	})
}
