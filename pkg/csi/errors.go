package csi

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/pkg/failure"
)

// codeOf is the table from failures to codes. It matters to the kubelet which codes are final: after any code except Canceled,
// DeadlineExceeded, Unavailable, ResourceExhausted and Aborted, the kubelet removes the target of a publish and never unpublishes.
func codeOf(reason failure.Reason) codes.Code {
	switch reason {
	case failure.ReasonInvalid:
		return codes.InvalidArgument
	case failure.ReasonNotFound:
		return codes.NotFound
	case failure.ReasonForbidden:
		return codes.PermissionDenied
	case failure.ReasonExists:
		return codes.AlreadyExists
	case failure.ReasonTooLarge:
		return codes.OutOfRange
	case failure.ReasonNodeFull, failure.ReasonCacheFull:
		return codes.ResourceExhausted
	case failure.ReasonBusy:
		return codes.Aborted
	case failure.ReasonUnavailable:
		return codes.Unavailable
	}
	return codes.Internal
}

// asStatus converts a failure into a gRPC status. nil stays nil, and a status is returned unchanged.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok { // a wrapped status is the text of a cause, not the answer
		return err
	}
	code := codeOf(failure.ReasonOf(err))
	if code == codes.Internal {
		switch {
		case errors.Is(err, context.Canceled):
			code = codes.Canceled
		case errors.Is(err, context.DeadlineExceeded):
			code = codes.DeadlineExceeded
		}
	}
	return status.Error(code, err.Error())
}
