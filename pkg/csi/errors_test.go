package csi

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/pkg/failure"
)

var errTest = errors.New("for a test")

func TestEachReasonHasItsCode(t *testing.T) {
	for reason, want := range map[failure.Reason]codes.Code{
		0:                           codes.Internal,
		failure.ReasonInvalid:       codes.InvalidArgument,
		failure.ReasonNotFound:      codes.NotFound,
		failure.ReasonForbidden:     codes.PermissionDenied,
		failure.ReasonExists:        codes.AlreadyExists,
		failure.ReasonTooLarge:      codes.OutOfRange,
		failure.ReasonNodeFull:      codes.ResourceExhausted,
		failure.ReasonBusy:          codes.Aborted,
		failure.ReasonUnavailable:   codes.Unavailable,
		failure.ReasonCacheFull:     codes.ResourceExhausted,
		failure.ReasonCacheFull + 1: codes.Internal,
	} {
		if got := codeOf(reason); got != want {
			t.Errorf("reason %d: got %s, want %s", reason, got, want)
		}
		// The same through the socket.
		s := serve(t, nil)
		s.publisher.publish = func(context.Context) error { return &failure.Error{Reason: reason, Err: errTest} }
		_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil))
		wantStatus(t, err, want, "for a test")
	}
}

func TestAsStatus(t *testing.T) {
	busy := &failure.Error{Reason: failure.ReasonBusy, Err: errTest}
	canceled := fmt.Errorf("open the mount: %w", context.Canceled)
	for _, test := range []struct {
		name string
		err  error
		code codes.Code
		text string
	}{
		{"nothing", nil, codes.OK, ""},
		{"internal", errTest, codes.Internal, "for a test"},
		{"reason", busy, codes.Aborted, "for a test"},
		{"wrapped reason", fmt.Errorf("publish: %w", busy), codes.Aborted, "publish: for a test"},
		{"joined reason", errors.Join(errTest, busy), codes.Aborted, "for a test\nfor a test"},
		{"status", status.Error(codes.DataLoss, "x"), codes.DataLoss, "x"},
		{"wrapped status is but a cause", fmt.Errorf("ask: %w", status.Error(codes.DataLoss, "x")), codes.Internal, "ask: rpc error: code = DataLoss desc = x"},
		{"cancelled", canceled, codes.Canceled, "open the mount: context canceled"},
		{"deadline", fmt.Errorf("write: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "write: context deadline exceeded"},
		{"a reason beats cancellation", &failure.Error{Reason: failure.ReasonBusy, Err: canceled}, codes.Aborted, "open the mount: context canceled"},
	} {
		t.Run(test.name, func(t *testing.T) { wantStatus(t, asStatus(test.err), test.code, test.text) })
	}
}
