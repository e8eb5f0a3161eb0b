package requests

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Redact returns the failure of a request in a form that authors of pods may see. A refusal, or another answer about the object itself, is
// returned as it is. For a problem of the API server or the connection, only code and reason are kept, or how the connection failed, and
// never the text of an answer. If the storage cannot be read, the API server names the corrupt object, perhaps of another tenant, to
// everybody who requests an object of that kind. The Retry-After is kept.
func Redact(err error) error {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		status := answer.Status()
		if status.Code < http.StatusInternalServerError && status.Code != http.StatusUnauthorized && status.Code != http.StatusTooManyRequests ||
			apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			return err
		}
		redacted := metav1.Status{
			Status: metav1.StatusFailure, Code: status.Code, Reason: status.Reason,
			Message: fmt.Sprintf("the API server answered %d %s", status.Code, status.Reason),
		}
		if status.Details != nil {
			redacted.Details = &metav1.StatusDetails{RetryAfterSeconds: status.Details.RetryAfterSeconds}
		}
		return &apierrors.StatusError{ErrStatus: redacted}
	}
	if failure, ok := errors.AsType[*url.Error](err); ok {
		return unreachableError(failure.Err)
	}
	return err
}

// errBroken replaces a connection's failure whose text may quote an answer.
var errBroken = errors.New("no readable answer")

// unreachableError returns the failure of a transport without any text that may quote an answer. Errors of the network and of the check of
// a certificate quote nothing.
func unreachableError(cause error) error {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	if unsent, ok := errors.AsType[*CredentialError](cause); ok {
		return unsent // nothing was sent
	}
	if errors.As(cause, &network) || errors.As(cause, &certificate) || errors.Is(cause, io.EOF) {
		return fmt.Errorf("ask the API server: %w", cause)
	}
	return fmt.Errorf("ask the API server: %w", errBroken)
}

// maxRetryAfter is the longest Retry-After that is obeyed.
const maxRetryAfter = time.Minute

// RetryAfter returns how long the API server asks the client to wait before it repeats a request that failed with err: at most one minute,
// or 0 if it doesn't ask.
func RetryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(max(seconds, 0))*time.Second, maxRetryAfter)
}
