package csi

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/pkg/publisher"
)

// codeOf is the table from failures to codes. It matters to the kubelet which codes are final: after any code except Canceled,
// DeadlineExceeded, Unavailable, ResourceExhausted and Aborted, the kubelet removes the target of a publish and never unpublishes.
func codeOf(reason publisher.Reason) codes.Code {
	switch reason {
	case publisher.ReasonInvalid:
		return codes.InvalidArgument
	case publisher.ReasonNotFound:
		return codes.NotFound
	case publisher.ReasonForbidden:
		return codes.PermissionDenied
	case publisher.ReasonExists:
		return codes.AlreadyExists
	case publisher.ReasonTooLarge:
		return codes.OutOfRange
	case publisher.ReasonNodeFull, publisher.ReasonCacheFull:
		return codes.ResourceExhausted
	case publisher.ReasonBusy:
		return codes.Aborted
	case publisher.ReasonUnavailable:
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
	code := codeOf(publisher.ReasonOf(err))
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
