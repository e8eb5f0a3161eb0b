package access

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// reviewServer answers or fails reviews. mu guards what is below it.
type reviewServer struct {
	mu   sync.Mutex
	err  error
	sent int
}

func (s *reviewServer) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	review.Status.Allowed = true
	return review, s.err
}

func (s *reviewServer) set(err error) (sent int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent = s.sent
	s.err, s.sent = err, 0
	return sent
}

// A hundred questions send one review at a time while the API server answers none. All are
// answered within ten seconds of the end, or of the time for which the server asked.
func TestAnOutageOfReviews(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		most    int
		recover time.Duration
	}{
		"unavailable":       {apierrors.NewServiceUnavailable("starting"), 30, 10 * time.Second},
		"too many requests": {apierrors.NewTooManyRequests("busy", 0), 30, 10 * time.Second},
		"with Retry-After":  {apierrors.NewTooManyRequests("busy", 20), 4, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &reviewServer{err: test.err}
				tracker, done := trackBy(t, server)
				defer done()
				const objects = 100
				w := Wish{Pod: volume.Pod{Namespace: "shop", Name: "web", UID: "u", ServiceAccount: "web"}, VolumeID: "v"}
				for i := range objects {
					ref := volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: fmt.Sprint("s", i)}
					w.Refs, w.Consents = append(w.Refs, ref), append(w.Consents, volume.Use{Ref: ref, Field: "sources[0]"})
				}
				r := tracker.New(w)
				defer r.Close()
				r.Start()
				<-time.After(time.Minute)
				// The first reviews were under way when the first of them failed.
				if n := server.set(nil); n < 2 || n > test.most+workers {
					t.Errorf("%d reviews in a minute of failures, want up to %d", n, test.most+workers)
				}
				if err := r.Get(w.Refs[0]).Err; err == nil {
					t.Error("an answer without a review")
				}
				<-time.After(test.recover)
				for _, ref := range w.Refs {
					if answer := r.Get(ref); answer.State != Absent {
						t.Fatalf("%s: state %d, %v, want an answer %v after the outage", ref, answer.State, answer.Err, test.recover)
					}
				}
				if n := server.set(nil); n != objects {
					t.Errorf("%d reviews after the outage, want one for each of %d objects", n, objects)
				}
			})
		})
	}
}

// trackBy returns a Tracker that runs on fake time and sends its reviews to server, and what
// ends it.
func trackBy(t *testing.T, server authz.Reviews[*authorizationv1.SubjectAccessReview]) (tracker *Tracker, done func()) {
	t.Helper()
	reviews := &Reviews{Ask: authz.AskAbout(authz.NewPaced(server, authz.NewPace(nil))), Verbs: []string{"get"}}
	tracker, err := New(Options{
		Objects: noObjects{}, Reviews: reviews, CrossNamespace: true, MaxAge: time.Minute,
		Changed: func(volume.Account, volume.Ref) {}, Renewed: func(volume.Account) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { tracker.Run(ctx) })
	return tracker, func() {
		cancel()
		running.Wait()
	}
}

// noObjects are an API server without objects.
type noObjects struct{}

func (noObjects) RegisterPod(volume.Pod, string, []volume.Ref) {}
func (noObjects) Keep(volume.Pod, string)                      {}
func (noObjects) UnregisterPod(volume.Pod, string)             {}
func (noObjects) Denied(volume.Pod, volume.Ref) error          { return nil }
func (noObjects) Renewed(volume.Account)                       {}
func (noObjects) GetObject(_ volume.Pod, ref volume.Ref) (*volume.Object, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{}, ref.Name)
}

// A server that ended before it confirmed a refusal, and refuses again as it starts, has confirmed nothing.
func TestAnOutageConfirmsNothing(t *testing.T) {
	track(t, false, func(w *world) {
		r := w.start("v1")
		w.want(r, Absent, false)
		w.set(func() { w.granted = nil })
		w.resync(r)
		<-time.After(time.Second)
		w.set(func() { w.err = apierrors.NewInternalError(errAPI) })
		<-time.After(time.Minute)
		w.set(func() { w.err, w.asked = nil, 0 })
		for w.takeAsked() == 0 {
			<-time.After(time.Millisecond)
		}
		synctest.Wait()
		w.want(r, Absent, false)
		w.set(func() { w.granted = map[volume.Ref]bool{other: true} })
		<-time.After(time.Minute)
		w.want(r, Absent, false)
		r.Close()
	})
}

// A large volume is admitted, however long its many questions take together.
func TestAdmitOfALargeVolume(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.slow = 600 * time.Millisecond })
		wish := Wish{Pod: volume.Pod{Namespace: "shop", Name: "v1", UID: "v1", ServiceAccount: "web"}, VolumeID: "v1"}
		for i := range volume.MaxReferences {
			ref := volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: fmt.Sprint("db-", i)}
			w.granted[ref] = true
			wish.Refs, wish.Consents = append(wish.Refs, ref), append(wish.Consents, volume.Use{Ref: ref, Field: "sources"})
		}
		if err := w.tracker.New(wish).Admit(w.Context()); err != nil {
			w.Error(err)
		}
	})
}
