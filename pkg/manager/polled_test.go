package manager

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

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
			inBubbles(t, Options{}, polls, func(t *testing.T, e *env) {
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
		name, pod, volumeID string
		ref                 volume.Ref
		cache, get          bool // whether reads wait
	}{
		{"another pod", "second", "v", ref, true, true},
		{"another volume of the pod", "first", "w", ref, false, true},
		{"another object", "second", "v", secretRef("b"), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubbles(t, Options{}, polls, func(t *testing.T, e *env) {
				old := e.api.put(secret("a", "old"))
				e.known(ref)
				after(maxAge)
				gate := make(chan struct{})
				e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
				e.refresh(ref)
				before := len(e.api.requests(ref))
				held := make(chan struct{})
				e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return held } })
				e.RegisterPod(pod(tc.pod), tc.volumeID, []volume.Ref{tc.ref})
				if waits := map[ChangeDetection]bool{Cache: tc.cache, Get: tc.get}[e.detection]; !waits {
					e.wantKnown(ref, old, "old")
					close(gate)
					close(held)
					synctest.Wait()
					return
				}
				e.reader = pod(tc.pod)
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
	inBubbles(t, Options{}, polls, func(t *testing.T, e *env) {
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

// TestAFailureIsNoAnswerForANewPod: what was known before a registration is not returned after it. A Refresh ends no pause.
func TestAFailureIsNoAnswerForANewPod(t *testing.T) {
	inBubbles(t, Options{}, polls, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.known(ref)
		e.refuseAll(syscall.ECONNREFUSED)
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		e.reader = pod("second")
		before := len(e.api.requests(ref))
		for range 5 {
			e.wantGetErr(ref, ErrNotSynced)
			synctest.Wait()
		}
		e.wantGetErr(ref, syscall.ECONNREFUSED)
		if n := e.changes(ref); n != 0 {
			t.Errorf("heard of %d changes of a failure that may pass", n)
		}
		e.refuseAll(apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no")))
		e.refresh(ref)
		after(maxOwnPause)
		if n := e.changes(ref); n < 1 {
			t.Error("heard nothing of a refusal")
		}
		for range 5 {
			if _, err := e.GetObject(ref); !apierrors.IsForbidden(err) {
				t.Errorf("GetObject: %v, want Forbidden", err)
			}
			synctest.Wait()
		}
		if n := len(e.api.requests(ref)) - before; n < 2 || n > 8 {
			t.Errorf("sent %d requests, want one for the first read and some with pauses", n)
		}
		e.refuseAll(nil)
		after(maxOwnPause)
		e.wantKnown(ref, v, "1")
	})
}

func node(ttl string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: testNode, Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: ttl}},
	}
}

func TestTTLOf(t *testing.T) {
	for ttl, want := range map[string]time.Duration{
		"0": 0, "1": time.Second, "300": 5 * time.Minute, "2147483647": 2147483647 * time.Second,
		"": time.Minute, "-1": time.Minute, "1m": time.Minute, "1.5": time.Minute, " 1": time.Minute,
		"2147483648": time.Minute, "99999999999999999999": time.Minute,
	} {
		if got := ttlOf(node(ttl)); got != want {
			t.Errorf("%q: got %v, want %v", ttl, got, want)
		}
	}
	if got := ttlOf(&corev1.Node{}); got != time.Minute {
		t.Errorf("no annotation: got %v, want 1m", got)
	}
}

// TestTheNodeSaysHowLong: the annotation is known, changes, and becomes unknown.
func TestTheNodeSaysHowLong(t *testing.T) {
	inBubbleWith(t, Options{ChangeDetection: Cache}, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		e.api.put(node("10"))
		e.known(ref)
		e.wantAsked(nodeRef) // nothing that is kept has been requested yet
		asks := func(age time.Duration) bool {
			t.Helper()
			e.refresh(ref)
			after(maxAge)
			e.refresh(ref) // of the last moment
			before := len(e.api.requests(ref))
			after(age)
			e.refresh(ref)
			return len(e.api.requests(ref)) > before
		}
		for _, step := range []struct {
			name   string
			change func()
			ttl    time.Duration
		}{
			{"at first", func() {}, 10 * time.Second},
			{"changed", func() { e.api.put(node("20")) }, 20 * time.Second},
			{"not known any more", func() {
				e.refuse(apierrors.NewInternalError(errors.New("unplugged")), func(r apiRequest) bool { return r.ref == nodeRef })
			}, 20 * time.Second},
			{"zero", func() {
				e.refuseAll(nil)
				e.api.put(node("0"))
			}, 0},
			{"bad", func() { e.api.put(node("soon")) }, time.Minute},
		} {
			step.change()
			if step.ttl > 0 && asks(step.ttl-1) || !asks(step.ttl) {
				t.Errorf("%s: the TTL is not %s", step.name, step.ttl)
			}
		}
	})
}
