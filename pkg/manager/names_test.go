package manager

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// theirs is the name of another tenant's object. corrupt is the answer of an API server that cannot read its storage: it is sent for each
// request, whichever object that is for.
const (
	theirs  = "payroll-2f9c"
	corrupt = `storage is (re)initializing: corrupt object: Key: "/registry/secrets/tenant-a/` + theirs + `"`
)

// page is the answer of a proxy that is not a Status.
type page struct{ s *apiServer }

func (p page) RoundTrip(req *http.Request) (*http.Response, error) {
	p.s.parse(req)
	return &http.Response{StatusCode: http.StatusBadGateway, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(corrupt))}, nil
}

// TestNoFailureNamesAnotherTenant: the server's text about its own trouble reaches no pod, neither that of the request nor one that waits
// in the same pause. The code and the reason do. TestRedact has the other answers.
func TestNoFailureNamesAnotherTenant(t *testing.T) {
	broken := metav1.Status{Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonInternalError, Message: corrupt}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"storage":   {&apierrors.StatusError{ErrStatus: broken}, "500 InternalError"},
		"a proxy":   {nil, "502 InternalError"},
		"its bytes": {errors.New("malformed HTTP response " + corrupt), "ask the API server"},
	} {
		for _, detection := range []ChangeDetection{Watch, Get} {
			t.Run(name+"/"+string(detection), func(t *testing.T) {
				inBubbleWith(t, Options{ChangeDetection: detection}, func(t *testing.T, e *env) {
					e.refuseAll(tc.err)
					if tc.err == nil {
						e.api.set(func() { e.api.refuse, e.api.instead = nil, page{e.api} })
					}
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
