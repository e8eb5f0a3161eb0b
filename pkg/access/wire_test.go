package access

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/volume"
)

// reviewWire is an API server as seen from below a client. It reviews rights. mu guards what is below it.
type reviewWire struct {
	mu sync.Mutex
	// answer says what it answers to the nth review, from 1 on, which is about an object of a name: a
	// code, and that of a review which the server could make.
	answer func(n int, name string) (code int, status authorizationv1.SubjectAccessReviewStatus)
	asked  []string
}

func (w *reviewWire) RoundTrip(req *http.Request) (*http.Response, error) {
	defer func() { _ = req.Body.Close() }()
	var review authorizationv1.SubjectAccessReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.asked = append(w.asked, review.Spec.ResourceAttributes.Name)
	code, status := w.answer(len(w.asked), review.Spec.ResourceAttributes.Name)
	w.mu.Unlock()
	var body any = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
	if code == http.StatusCreated {
		body = map[string]any{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": status}
	}
	text, err := json.Marshal(body)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: req, Body: io.NopCloser(bytes.NewReader(text))}, err
}

// set changes what the server answers from now on, and returns how many reviews came until now.
func (w *reviewWire) set(answer func(n int, name string) (int, authorizationv1.SubjectAccessReviewStatus)) (asked int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked = len(w.asked)
	w.asked = nil
	if answer != nil {
		w.answer = answer
	}
	return asked
}

func says(allowed bool) func(int, string) (int, authorizationv1.SubjectAccessReviewStatus) {
	return func(int, string) (int, authorizationv1.SubjectAccessReviewStatus) {
		return http.StatusCreated, authorizationv1.SubjectAccessReviewStatus{Allowed: allowed}
	}
}

// overWire runs a test on fake time with a Tracker that asks a server, which says yes to everything.
func overWire(t *testing.T, test func(t *testing.T, w *reviewWire, tracker *Tracker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &reviewWire{answer: says(true)}
		client, err := authorizationclient.NewForConfig(&rest.Config{
			Host: "http://api", QPS: -1, Transport: w,
			ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
		})
		if err != nil {
			t.Fatal(err)
		}
		tracker, done := trackBy(t, client.SubjectAccessReviews())
		defer done()
		test(t, w, tracker)
	})
}

func started(tracker *Tracker, id string) *Registration {
	r := tracker.New(wish(id))
	r.Start()
	synctest.Wait()
	return r
}

func wantState(t *testing.T, r *Registration, state State, confirmed bool) {
	t.Helper()
	synctest.Wait()
	if got := r.Get(other); got.State != state || got.Confirmed != confirmed {
		t.Errorf("state %d, confirmed %t (%v), want %d, %t", got.State, got.Confirmed, got.Err, state, confirmed)
	}
}

// TestTheEndOfOneVolume takes no answer from another one of the same account, which goes on to hear of changes.
func TestTheEndOfOneVolume(t *testing.T) {
	overWire(t, func(t *testing.T, w *reviewWire, tracker *Tracker) {
		first, second := started(tracker, "v1"), started(tracker, "v2")
		wantState(t, second, Absent, false) // it doesn't exist, and may be shown
		first.Close()
		wantState(t, second, Absent, false)
		w.set(says(false))
		<-time.After(time.Minute)
		second.Recheck()
		<-time.After(2 * refusalTime)
		wantState(t, second, Refused, true)
		second.Close()
		w.set(nil)
		<-time.After(time.Hour)
		if n := w.set(nil); n > 0 {
			t.Errorf("%d reviews for nobody", n)
		}
	})
}

// TestOneWrongRefusal: the one that confirms a refusal is another answer of the server, not the first one again.
func TestOneWrongRefusal(t *testing.T) {
	overWire(t, func(t *testing.T, w *reviewWire, tracker *Tracker) {
		r := started(tracker, "v1")
		w.set(func(n int, name string) (int, authorizationv1.SubjectAccessReviewStatus) { return says(n > 1)(n, name) })
		<-time.After(time.Minute)
		r.Recheck()
		for range 20 {
			wantState(t, r, Absent, false)
			<-time.After(refusalTime / 4)
		}
		if n := w.set(nil); n < 2 {
			t.Errorf("%d reviews, want one that refuses and one that doesn't confirm it", n)
		}
		r.Close()
	})
}

// TestARefusalBesideAFailure is final for a publish: no other answer can make it succeed.
func TestARefusalBesideAFailure(t *testing.T) {
	overWire(t, func(t *testing.T, w *reviewWire, tracker *Tracker) {
		undecided := volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: "undecided"}
		w.set(func(n int, name string) (int, authorizationv1.SubjectAccessReviewStatus) {
			if name == undecided.Name {
				return http.StatusCreated, authorizationv1.SubjectAccessReviewStatus{EvaluationError: "a webhook is away"}
			}
			return says(false)(n, name)
		})
		both := wish("v1")
		both.Refs = append(both.Refs, undecided)
		both.Consents = append(both.Consents, volume.Use{Ref: undecided, Field: "sources[2]"})
		var refused *RefusedError
		if err := tracker.New(both).Admit(t.Context()); !errors.As(err, &refused) {
			t.Errorf("got %v, want a refusal", err)
		}
	})
}

// TestABusyServerConfirmsARefusal: that it has had too many requests in between says nothing of what it refused.
func TestABusyServerConfirmsARefusal(t *testing.T) {
	overWire(t, func(t *testing.T, w *reviewWire, tracker *Tracker) {
		r := started(tracker, "v1")
		w.set(func(n int, name string) (int, authorizationv1.SubjectAccessReviewStatus) {
			if n == 2 {
				return http.StatusTooManyRequests, authorizationv1.SubjectAccessReviewStatus{}
			}
			return says(false)(n, name)
		})
		<-time.After(time.Minute)
		r.Recheck()
		<-time.After(2*refusalTime - time.Millisecond) // it doesn't begin anew
		wantState(t, r, Refused, true)
		r.Close()
	})
}

// TestAnAdmissionAges: what a publish was told of the pod's rights is asked again once it is too old.
func TestAnAdmissionAges(t *testing.T) {
	overWire(t, func(t *testing.T, w *reviewWire, tracker *Tracker) {
		r := tracker.New(wish("v1"))
		if err := r.Admit(t.Context()); err != nil || !r.Admitted() {
			t.Fatalf("got %v, admitted %t", err, r.Admitted())
		}
		w.set(says(false))
		<-time.After(admitAge - time.Millisecond)
		if err := r.Admit(t.Context()); err != nil || w.set(nil) > 0 {
			t.Errorf("asked again too early: %v", err)
		}
		<-time.After(2 * time.Millisecond)
		var refused *RefusedError
		if r.Admitted() {
			t.Errorf("admitted for more than %s", admitAge)
		}
		if err := r.Admit(t.Context()); !errors.As(err, &refused) {
			t.Errorf("got %v, want a refusal", err)
		}
	})
}
