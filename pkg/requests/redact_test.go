package requests

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// other is in the text of each answer. The API server may name the object of another tenant there.
const other = "secrets/of-another-tenant"

func answerOf(code int, reason metav1.StatusReason, details *metav1.StatusDetails) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: other, Details: details,
	}}
}

// TestRedact: authors of pods see what is wrong with an object, and not what an API server that is not well says of others.
func TestRedact(t *testing.T) {
	tooLarge := &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}
	later := &metav1.StatusDetails{Name: other, RetryAfterSeconds: 7, Causes: []metav1.StatusCause{{Message: other, Field: other}}}
	for name, test := range map[string]struct {
		err   error
		shown bool
		want  string // if the text is not shown
	}{
		"forbidden":           {err: answerOf(http.StatusForbidden, metav1.StatusReasonForbidden, nil), shown: true},
		"a version too large": {err: answerOf(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, tooLarge), shown: true},
		"unauthorized":        {err: answerOf(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, nil), want: "the API server answered 401 Unauthorized"},
		"too many requests":   {err: answerOf(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, later), want: "answered 429 TooManyRequests"},
		"an internal error":   {err: answerOf(http.StatusInternalServerError, metav1.StatusReasonInternalError, nil), want: "answered 500 InternalError"},
		"not ready":           {err: answerOf(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, later), want: "answered 503 ServiceUnavailable"},
		"no connection":       {err: &url.Error{Op: "Get", URL: other, Err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}, want: "connection refused"},
		"an end":              {err: &url.Error{Op: "Get", URL: other, Err: io.EOF}, want: "EOF"},
		"another answer":      {err: &url.Error{Op: "Get", URL: other, Err: errors.New("malformed HTTP status " + other)}, want: "no readable answer"},
		"no token":            {err: &url.Error{Op: "Get", URL: other, Err: &CredentialError{errors.New("no token")}}, want: "no token"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Redact(test.err)
			if test.shown != errors.Is(got, test.err) || !test.shown && strings.Contains(got.Error(), other) {
				t.Errorf("got %v, want the error itself: %t", got, test.shown)
			}
			if !strings.Contains(got.Error(), test.want) {
				t.Errorf("got %v, want %q", got, test.want)
			}
			if !test.shown && RetryAfter(got) != RetryAfter(test.err) {
				t.Errorf("Retry-After %s became %s", RetryAfter(test.err), RetryAfter(got))
			}
		})
	}
}

// TestIdentitiesAreNamed: the log says whose requests wait.
func TestIdentitiesAreNamed(t *testing.T) {
	for want, who := range map[string]identity{
		"the node":                 {node: true},
		"the plugin's own account": {},
		"shop/web":                 {account: volume.ServiceAccount{Namespace: "shop", Name: "web"}},
	} {
		if got := who.String(); got != want {
			t.Errorf("%+v is %q, want %q", who, got, want)
		}
	}
}
