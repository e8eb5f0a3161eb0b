package manager

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

func podOf(uid types.UID, account string) volume.Pod {
	return volume.Pod{Namespace: "ns", Name: string(uid), UID: uid, ServiceAccount: account}
}

func (e *env) wantValue(pod volume.Pod, ref volume.Ref, value string) {
	e.t.Helper()
	if obj, err := e.soon(pod, ref); err != nil || string(obj.Data["k"]) != value {
		e.t.Errorf("%s for %s: got %v, %v, want %q", ref, pod.Account(), obj, err, value)
	}
}

// Pods of one account share what is read, and a watch. An account's answers are not used for others.
func TestWhatAnAccountIsToldIsItsOwn(t *testing.T) {
	inBubbles(t, Options{Accounts: true}, all, func(t *testing.T, e *env) {
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
		if obj, err := e.soon(b, ref); !apierrors.IsForbidden(err) {
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

// theirs is the name of another tenant's object. corrupt is the answer of an API server that cannot read its storage: it is sent for each
// request, whichever object that is for.
const (
	theirs  = "payroll-2f9c"
	corrupt = `storage is (re)initializing: corrupt object: Key: "/registry/secrets/tenant-a/` + theirs + `"`
)

// TestNoFailureNamesAnotherTenant: the server's text about its own trouble reaches no pod, neither that of the request nor one that waits
// in the same pause. The code and the reason do. TestRedact has the other answers.
func TestNoFailureNamesAnotherTenant(t *testing.T) {
	broken := metav1.Status{Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonInternalError, Message: corrupt}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"storage":   {&apierrors.StatusError{ErrStatus: broken}, "500 InternalError"},
		"a proxy":   {page(corrupt), "502 InternalError"},
		"its bytes": {errors.New("malformed HTTP response " + corrupt), "ask the API server"},
	} {
		for _, detection := range []ChangeDetection{Watch, Get} {
			t.Run(name+"/"+string(detection), func(t *testing.T) {
				inBubbleWith(t, Options{ChangeDetection: detection}, func(t *testing.T, e *env) {
					e.refuseAll(tc.err)
					refs := []volume.Ref{secretRef("first"), secretRef("second")}
					for _, ref := range refs {
						e.RegisterPod(podOf(types.UID(ref.Name), "a"), "v", []volume.Ref{ref})
						_, _ = e.GetObject(ref)
						synctest.Wait()
					}
					for range 4 {
						for _, ref := range refs {
							_, err := e.GetObject(ref)
							e.wantNoName(err, tc.want)
							if denied := e.DenialErr(ref); denied != nil {
								e.wantNoName(denied, tc.want)
							}
						}
						for s := range e.Objects {
							e.wantNoName(s.Err, tc.want)
						}
						after(denialTime)
					}
				})
			})
		}
	}
}

func (e *env) wantNoName(err error, want string) {
	e.t.Helper()
	if err == nil || strings.Contains(err.Error(), theirs) || !strings.Contains(err.Error(), want) {
		e.t.Errorf("got %v, want %q and no name of another's", err, want)
	}
}
