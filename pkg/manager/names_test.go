package manager

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
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
// in the same pause. The code and the reason do.
func TestNoFailureNamesAnotherTenant(t *testing.T) {
	status := func(code int32, reason metav1.StatusReason, details *metav1.StatusDetails) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: corrupt, Details: details}}
	}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"storage":      {status(500, metav1.StatusReasonInternalError, nil), "500 InternalError"},
		"of one":       {status(500, metav1.StatusReasonInternalError, &metav1.StatusDetails{Name: theirs}), "500 InternalError"},
		"its causes":   {status(503, metav1.StatusReasonServiceUnavailable, &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: corrupt, Field: theirs}}}), "503 ServiceUnavailable"},
		"its cache":    {status(429, metav1.StatusReasonTooManyRequests, &metav1.StatusDetails{RetryAfterSeconds: 1}), "429 TooManyRequests"},
		"credential":   {status(401, metav1.StatusReasonUnauthorized, nil), "401 Unauthorized"},
		"a proxy":      {nil, "502 InternalError"},
		"a connection": {syscall.ECONNREFUSED, "connection refused"},
		"its bytes":    {errors.New("malformed HTTP response " + corrupt), "ask the API server"},
	} {
		for _, detection := range []ChangeDetection{Watch, Get} {
			t.Run(name+"/"+string(detection), func(t *testing.T) {
				inBubbleWith(t, detection, func(t *testing.T, e *env) {
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

// refuseAll makes the API server fail each request with err.
func (e *env) refuseAll(err error) {
	e.api.set(func() { e.api.refuse = func(apiRequest) error { return err } })
}
