package access

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	own    = volume.Ref{Kind: volume.ConfigMap, Namespace: "shop", Name: "app"}
	other  = volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: "db"}
	errAPI = errors.New("the API server is away")
)

// world is a Tracker on fakes of the API server. mu guards what is below it.
type world struct {
	*testing.T
	tracker *Tracker

	mu         sync.Mutex
	granted    map[volume.Ref]bool
	slow       time.Duration
	err        error
	asked      int
	registered map[string][]volume.Ref
	kept       map[string]bool
	objects    map[volume.Ref]*volume.Object
	failures   map[volume.Ref]error
	denials    map[volume.Ref]error
	changes    []volume.Ref
	renewed    int
	held       map[string]string
	proof      error
}

// track runs a test on fake time with a Tracker that runs.
func track(t *testing.T, identity bool, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			T: t, granted: map[volume.Ref]bool{own: true, other: true}, registered: map[string][]volume.Ref{}, kept: map[string]bool{}, objects: map[volume.Ref]*volume.Object{},
			failures: map[volume.Ref]error{}, denials: map[volume.Ref]error{}, held: map[string]string{},
		}
		opts := Options{
			Objects: w, Reviews: &Reviews{Ask: w.Ask, Verbs: []string{"get"}}, CrossNamespace: true, MaxAge: time.Minute,
			Changed: func(_ volume.Account, ref volume.Ref) { w.set(func() { w.changes = append(w.changes, ref) }) },
			Renewed: func(volume.Account) { w.set(func() { w.renewed++ }) },
		}
		if identity {
			opts.Identity = w
		}
		tracker, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		w.tracker = tracker
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan struct{})
		go func() { tracker.Run(ctx); close(ended) }()
		test(w)
		cancel()
		<-ended
	})
}

// resync has registrations recheck after another, once their last answers are old.
func (w *world) resync(all ...*Registration) {
	<-time.After(w.tracker.opts.MaxAge)
	for _, r := range all {
		r.Recheck()
		synctest.Wait()
	}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) RegisterPod(_ volume.Pod, volumeID string, refs []volume.Ref) {
	w.set(func() { w.registered[volumeID] = refs })
}

func (w *world) Keep(_ volume.Pod, volumeID string) { w.set(func() { w.kept[volumeID] = true }) }

func (w *world) UnregisterPod(_ volume.Pod, volumeID string) {
	w.set(func() { delete(w.registered, volumeID); delete(w.kept, volumeID) })
}

func (w *world) GetObject(_ volume.Pod, ref volume.Ref) (*volume.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.failures[ref]; err != nil {
		return nil, err
	}
	if w.objects[ref] == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, ref.Name)
	}
	return w.objects[ref], nil
}

func (w *world) Denied(_ volume.Pod, ref volume.Ref) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.denials[ref]
}

func (w *world) Renewed(volume.Account) {}

func (w *world) Ask(ctx context.Context, _ volume.Account, ref volume.Ref, _ string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if w.slow > 0 {
		w.mu.Unlock()
		select {
		case <-time.After(w.slow):
		case <-ctx.Done():
		}
		w.mu.Lock()
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return w.granted[ref] && w.err == nil, w.err
}

func (w *world) Prove(context.Context, volume.Pod, volume.Token) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.proof
}

func (w *world) Put(_ volume.Pod, volumeID string, token volume.Token) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := len(w.held) == 0
	w.held[volumeID] = token.Reveal()
	return first
}

func (w *world) Drop(_ volume.Pod, volumeID string) { w.set(func() { delete(w.held, volumeID) }) }

// wish is that of a volume of a pod of one account, which shows both objects.
func wish(id string) Wish {
	return Wish{
		Pod:      volume.Pod{Namespace: "shop", Name: id, UID: types.UID(id), ServiceAccount: "web"},
		VolumeID: id,
		Refs:     []volume.Ref{own, other},
		Consents: []volume.Use{{Ref: other, Field: "sources[1].secret.namespace"}},
	}
}

// start is New and Start.
func (w *world) start(id string) *Registration {
	r := w.tracker.New(wish(id))
	r.Start()
	return r
}

// want compares the state of the object of the other namespace.
func (w *world) want(r *Registration, state State, confirmed bool) {
	w.Helper()
	synctest.Wait()
	if got := r.Get(other); got.State != state || got.Confirmed != confirmed {
		w.Errorf("state %d, confirmed %t (%v), want %d, %t", got.State, got.Confirmed, got.Err, state, confirmed)
	}
}

func (w *world) takeAsked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.asked
	w.asked = 0
	return n
}

func TestTheFourAnswers(t *testing.T) {
	track(t, false, func(w *world) {
		r := w.start("v1")
		w.want(r, Absent, false)
		w.set(func() { w.objects[other] = &volume.Object{Ref: other} })
		w.want(r, Present, false)
		w.set(func() { w.failures[other] = errAPI })
		w.want(r, Unknown, false)
		w.set(func() { w.failures[other], w.granted = nil, nil })
		w.resync(r)
		w.want(r, Present, false) // a first refusal after a consent says nothing yet
		<-time.After(refusalTime)
		w.want(r, Refused, true)
		if text := r.Refusal(map[volume.Ref]bool{other: true}).Error(); !strings.HasPrefix(text, "sources[1].secret.namespace: Forbidden: ") {
			w.Error(text)
		}
		r.Close()
	})
}

// A first refusal is confirmed after a while; a consent in between ends it.
func TestARefusalIsConfirmed(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.granted = nil })
		r := w.start("v1")
		w.want(r, Refused, false)
		w.set(func() { w.granted = map[volume.Ref]bool{other: true} })
		<-time.After(refusalTime)
		w.want(r, Absent, false)
		w.set(func() { w.granted = nil })
		w.resync(r)
		synctest.Wait()
		<-time.After(refusalTime)
		w.want(r, Refused, true)
		w.mu.Lock()
		if got := w.registered["v1"]; !slices.Equal(got, []volume.Ref{own}) {
			w.Errorf("still read: %v", got)
		}
		w.mu.Unlock()
		w.set(func() { w.granted = map[volume.Ref]bool{other: true} })
		w.resync(r)
		w.want(r, Absent, false)
		w.mu.Lock()
		if got := w.registered["v1"]; len(got) != 2 {
			w.Errorf("read again: %v", got)
		}
		w.mu.Unlock()
		r.Close()
	})
}

// One question is for all volumes of an account, and what one of them learns holds for all.
func TestVolumesShareAQuestion(t *testing.T) {
	track(t, false, func(w *world) {
		var all []*Registration
		for _, id := range []string{"v1", "v2", "v3"} {
			all = append(all, w.start(id))
			synctest.Wait() // a start during a review has it asked again
		}
		w.want(all[2], Absent, false)
		if n := w.takeAsked(); n != 1 {
			w.Errorf("asked %d times", n)
		}
		w.resync(all...)
		if n := w.takeAsked(); n != 1 {
			w.Errorf("asked %d times in a resync", n)
		}
		w.set(func() { w.granted = nil })
		w.resync(all[0])
		synctest.Wait()
		<-time.After(refusalTime)
		for _, r := range all {
			w.want(r, Refused, true)
		}
		if n := w.takeAsked(); n != 2 {
			w.Errorf("asked %d times for a refusal", n)
		}
		for _, r := range all {
			r.Close()
		}
		<-time.After(2 * admitAge)
		synctest.Wait()
		if len(w.tracker.consents) > 0 {
			w.Errorf("%d consents are left", len(w.tracker.consents))
		}
	})
}

// What a new volume is admitted to is granted again to the volumes that are mounted.
func TestAnAdmissionEndsARefusal(t *testing.T) {
	track(t, false, func(w *world) {
		r := w.start("v1")
		w.set(func() { w.granted = nil })
		w.resync(r)
		synctest.Wait()
		<-time.After(refusalTime)
		w.want(r, Refused, true)
		w.set(func() { w.granted, w.changes = map[volume.Ref]bool{other: true}, nil })
		next := w.tracker.New(wish("v2"))
		if err := next.Admit(w.Context()); err != nil {
			w.Fatal(err)
		}
		next.Start()
		w.want(r, Absent, false)
		w.mu.Lock()
		if len(w.registered["v1"]) != 2 || !slices.Contains(w.changes, other) {
			w.Errorf("registered %v, told of %v", w.registered["v1"], w.changes)
		}
		w.mu.Unlock()
		r.Close()
		next.Close()
	})
}

// A question without an answer is asked again, and leaves a refusal what it is.
func TestAFailedReview(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.err = errAPI })
		r := w.start("v1")
		w.want(r, Unknown, false)
		if err := r.Get(other).Err; !errors.Is(err, ErrUnreviewed) || !errors.Is(err, errAPI) {
			w.Errorf("got %v", err)
		}
		w.takeAsked()
		<-time.After(time.Minute)
		if n := w.takeAsked(); n < 10 || n > 40 {
			w.Errorf("asked %d times in a minute", n)
		}
		w.set(func() { w.err, w.granted = nil, nil })
		<-time.After(4*backoff.Short + 2*refusalTime)
		w.want(r, Refused, true)
		w.set(func() { w.err = errAPI })
		w.resync(r)
		w.want(r, Refused, true)
		r.Close()
		w.takeAsked()
		<-time.After(time.Minute)
		if n := w.takeAsked(); n > 0 {
			w.Errorf("asked %d times for nobody", n)
		}
	})
}

// Admit asks before anything is read, and is final in a refusal only.
func TestAdmit(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.err = errAPI })
		r := w.tracker.New(wish("v1"))
		if err := r.Admit(w.Context()); !errors.Is(err, ErrUnreviewed) {
			t.Errorf("got %v", err)
		}
		w.set(func() { w.err, w.granted = nil, nil })
		var refused *RefusedError
		if err := r.Admit(w.Context()); !errors.As(err, &refused) || len(w.registered) > 0 {
			t.Errorf("got %v, registered %v", err, w.registered)
		}
		w.set(func() { w.granted = map[volume.Ref]bool{other: true} })
		<-time.After(admitAge)
		if err := r.Admit(w.Context()); err != nil {
			t.Error(err)
		}
		w.takeAsked()
		if err := r.Admit(w.Context()); err != nil || w.takeAsked() > 0 {
			t.Errorf("asked again at once, or %v", err)
		}
		r.Start()
		w.want(r, Absent, false)
		if n := w.takeAsked(); n > 0 {
			t.Errorf("asked %d times what was just answered", n)
		}
		r.Close()
	})
}

// Nothing is shown by the token of somebody else, and a token is used once it is proven.
func TestTokens(t *testing.T) {
	track(t, true, func(w *world) {
		r := w.start("v1")
		if err := r.Get(own).Err; !errors.Is(err, authz.ErrNoToken) {
			t.Errorf("without a token: %v", err)
		}
		w.set(func() { w.proof = authz.ErrNotThePods })
		r.Offer(volume.NewToken("forged", time.Now().Add(time.Hour)))
		w.want(r, Unknown, false)
		var denied *DeniedError
		if err := r.Get(own).Err; !errors.As(err, &denied) || len(w.held) > 0 {
			t.Errorf("with a forged one: %v, held %v", err, w.held)
		}
		w.set(func() { w.proof = nil })
		r.Offer(volume.NewToken("own", time.Now().Add(time.Hour)))
		w.want(r, Absent, false)
		if w.held["v1"] != "own" || w.renewed != 1 {
			t.Errorf("held %v, told %d times", w.held, w.renewed)
		}
		w.set(func() { w.proof = authz.ErrNotThePods })
		r.Offer(volume.NewToken("forged", time.Now().Add(time.Hour)))
		w.want(r, Absent, false)
		if w.held["v1"] != "own" {
			t.Errorf("held %v", w.held)
		}
		r.Close()
		if len(w.held) > 0 || len(w.registered) > 0 {
			t.Errorf("left: %v, %v", w.held, w.registered)
		}
	})
}

// No registration and no token outlives a Close that comes beside a question.
func TestCloseBesideQuestions(t *testing.T) {
	track(t, true, func(w *world) {
		for range 50 {
			r := w.start("v1")
			w.set(func() { w.granted = nil })
			r.Offer(volume.NewToken("t", time.Now().Add(time.Hour)))
			r.Recheck()
			r.Close()
			r.Close()
			synctest.Wait()
			<-time.After(2 * refusalTime)
			if len(w.held) > 0 || len(w.registered) > 0 || len(w.tracker.consents) > 0 {
				t.Fatalf("left: %v, %v, %d consents", w.held, w.registered, len(w.tracker.consents))
			}
		}
	})
}

func TestBadOptions(t *testing.T) {
	if _, err := New(Options{CrossNamespace: true}); err == nil || !strings.Contains(err.Error(), "Reviews: Required value") || !strings.Contains(err.Error(), "MaxAge: Invalid value") {
		t.Errorf("got %v", err)
	}
}
