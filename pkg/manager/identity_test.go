package manager

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

var errNoToken = errors.New("no token")

// give gives an account a token.
func (e *env) give(account volume.ServiceAccount) {
	e.api.set(func() { e.api.hasTokens = true })
	e.OnNewCredential(account)
}

// ofPods is a transport for requests that carry an account's rights.
type ofPods struct{ *apiServer }

func (p ofPods) RoundTrip(req *http.Request) (*http.Response, error) {
	p.mu.Lock()
	has := p.hasTokens
	p.mu.Unlock()
	if !has {
		return nil, &requests.CredentialError{Err: errNoToken}
	}
	return p.apiServer.RoundTrip(req)
}

func podOf(uid types.UID, account string) volume.Pod {
	return volume.Pod{Namespace: "ns", Name: string(uid), UID: uid, ServiceAccount: account}
}

// asPods runs a test with a manager that reads with the rights of pods.
func asPods(t *testing.T, detections []ChangeDetection, test func(t *testing.T, e *env)) {
	t.Helper()
	inBubbles(t, Options{Accounts: true}, detections, test)
}

func (e *env) wantValue(pod volume.Pod, ref volume.Ref, value string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Second)
	defer cancel()
	obj, err := e.awaitFor(ctx, pod, ref)
	if err != nil || string(obj.Data["k"]) != value {
		e.t.Errorf("%s for %s: got %v, %v, want %q", ref, pod.Account(), obj, err, value)
	}
}

// Pods of one account share what is read, and a watch. An account's answers are not used for others.
func TestWhatAnAccountIsToldIsItsOwn(t *testing.T) {
	asPods(t, []ChangeDetection{Watch, Cache, Get}, func(t *testing.T, e *env) {
		ref := secretRef("db")
		e.api.put(secret("db", "v1"))
		a1, a2, b := podOf("a1", "a"), podOf("a2", "a"), podOf("b1", "b")
		e.refuse(errForbidden, func(r apiRequest) bool { return r.account == b.Account() && r.ref == ref })
		for _, pod := range []volume.Pod{a1, a2, b} {
			e.RegisterPod(pod, "v", []volume.Ref{ref})
		}
		e.wantValue(a1, ref, "v1")
		e.wantValue(a2, ref, "v1")
		e.wantWatches(ref, 1)
		e.Manager.Refresh(a1, []volume.Ref{ref}) // with Cache, this requests the Node
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if obj, err := e.awaitFor(ctx, b, ref); !apierrors.IsForbidden(err) {
			t.Errorf("the other account got %v, %v", obj, err)
		}
		e.UnregisterPod(a1, "v")
		e.wantValue(a2, ref, "v1")
		e.wantWatches(ref, 1)
		e.UnregisterPod(a2, "v")
		e.wantWatches(ref, 0)
		if _, err := e.Manager.GetObject(a1, ref); !errors.Is(err, ErrNotRegistered) {
			t.Errorf("after the last pod of the account: %v", err)
		}
		for _, r := range e.api.requests(ref) {
			if r.account != a1.Account() && r.account != b.Account() {
				t.Errorf("a request carries the rights of %q", r.account)
			}
		}
		if n := len(e.api.requests(nodeRef)); (n > 0) != (e.detection == Cache) {
			t.Errorf("the Node was asked for %d times", n)
		}
	})
}

// An account without a token sends nothing, and continues at once when it gets one.
func TestAnAccountWithoutATokenWaits(t *testing.T) {
	asPods(t, []ChangeDetection{Watch}, func(t *testing.T, e *env) {
		ref, pod := secretRef("db"), podOf("c1", "c")
		e.api.set(func() { e.api.hasTokens = false })
		e.api.put(secret("db", "v1"))
		e.RegisterPod(pod, "v", []volume.Ref{ref})
		after(time.Hour)
		if _, err := e.Manager.GetObject(pod, ref); !errors.Is(err, ErrNotSynced) || !errors.Is(err, errNoToken) {
			t.Errorf("got %v", err)
		}
		if n := len(e.api.requests(ref)); n > 0 {
			t.Errorf("%d requests were sent", n)
		}
		begin := time.Now()
		e.give(pod.Account())
		e.wantValue(pod, ref, "v1")
		if took := time.Since(begin); took != 0 {
			t.Errorf("it took %s", took)
		}
		e.api.set(func() { e.api.hasTokens = false })
		e.RegisterPod(podOf("d1", "d"), "v", []volume.Ref{ref}) // the end must not wait for its token
	})
}
