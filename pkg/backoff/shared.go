package backoff

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Shared returns the failure of a request as others may learn of it, whose pods may be another tenant's: its code
// and its reason, or how the connection failed, and never the text of an answer. In trouble of its own the API server
// names objects, and not only the one that was asked for: while its storage can't be read, it says which object is
// corrupt, to whoever asks for any of that kind. What Shared returns has the level and the Retry-After of err.
func Shared(err error) error {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		status := answer.Status()
		shared := metav1.Status{
			Status: metav1.StatusFailure, Code: status.Code, Reason: status.Reason,
			Message: fmt.Sprintf("the API server answered %d %s", status.Code, status.Reason),
		}
		if status.Details != nil {
			shared.Details = &metav1.StatusDetails{RetryAfterSeconds: status.Details.RetryAfterSeconds}
		}
		return &apierrors.StatusError{ErrStatus: shared}
	}
	failure, ok := errors.AsType[*url.Error](err)
	if !ok {
		return errUnsaid
	}
	// What the network, or the check of a certificate, says holds no byte of an answer.
	var network net.Error
	var certificate *tls.CertificateVerificationError
	if cause := failure.Err; errors.As(cause, &network) || errors.As(cause, &certificate) || errors.Is(cause, io.EOF) {
		return unreachableError{cause}
	}
	return unreachableError{errBroken}
}

var (
	// errUnsaid stands for a failure that says nothing that others may learn.
	errUnsaid = errors.New("a request to the API server failed")
	// errBroken stands for a connection's failure whose text may quote what came over it.
	errBroken = errors.New("no answer that can be read")
)

// unreachableError is a url.Error without the URL, which names what was asked for.
type unreachableError struct{ err error }

func (e unreachableError) Error() string { return "ask the API server: " + e.err.Error() }
func (e unreachableError) Unwrap() error { return e.err }
