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

// Told returns the failure of a request as the authors of pods may learn of it. A refusal, or another answer about the
// object alone, is err itself. Of trouble of the API server, or of the way to it, only code and reason are told, or how
// the connection failed, and never the text of an answer: while its storage can't be read, the API server says which
// object is corrupt, another tenant's perhaps, to whoever asks for any of that kind. The Retry-After stays.
func Told(err error) error {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		status := answer.Status()
		if status.Code < http.StatusInternalServerError && status.Code != http.StatusUnauthorized && status.Code != http.StatusTooManyRequests ||
			apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			return err
		}
		told := metav1.Status{
			Status: metav1.StatusFailure, Code: status.Code, Reason: status.Reason,
			Message: fmt.Sprintf("the API server answered %d %s", status.Code, status.Reason),
		}
		if status.Details != nil {
			told.Details = &metav1.StatusDetails{RetryAfterSeconds: status.Details.RetryAfterSeconds}
		}
		return &apierrors.StatusError{ErrStatus: told}
	}
	if failure, ok := errors.AsType[*url.Error](err); ok {
		return unreachable(failure.Err)
	}
	return err
}

// errBroken stands for a connection's failure whose text may quote what came over it.
var errBroken = errors.New("no answer that can be read")

// unreachable returns the failure of a transport without what may quote an answer. What the network, or the check of a
// certificate, says holds no byte of one.
func unreachable(cause error) error {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	if unsent, ok := errors.AsType[*CredentialError](cause); ok {
		return unsent // nothing was asked
	}
	if errors.As(cause, &network) || errors.As(cause, &certificate) || errors.Is(cause, io.EOF) {
		return fmt.Errorf("ask the API server: %w", cause)
	}
	return fmt.Errorf("ask the API server: %w", errBroken)
}

// maxRetryAfter is the longest Retry-After that is obeyed.
const maxRetryAfter = time.Minute

// RetryAfter returns how long the API server asks to wait before the request is sent again that failed with err, a minute at
// most; 0 if it does not ask.
func RetryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(max(seconds, 0))*time.Second, maxRetryAfter)
}
