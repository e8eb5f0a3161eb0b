package csi

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/pkg/publisher"
)

var errTest = errors.New("for a test")

func TestEachReasonHasItsCode(t *testing.T) {
	for reason, want := range map[publisher.Reason]codes.Code{
		0:                             codes.Internal,
		publisher.ReasonInvalid:       codes.InvalidArgument,
		publisher.ReasonNotFound:      codes.NotFound,
		publisher.ReasonForbidden:     codes.PermissionDenied,
		publisher.ReasonExists:        codes.AlreadyExists,
		publisher.ReasonTooLarge:      codes.OutOfRange,
		publisher.ReasonNodeFull:      codes.ResourceExhausted,
		publisher.ReasonBusy:          codes.Aborted,
		publisher.ReasonUnavailable:   codes.Unavailable,
		publisher.ReasonCacheFull:     codes.ResourceExhausted,
		publisher.ReasonCacheFull + 1: codes.Internal,
	} {
		if got := codeOf(reason); got != want {
			t.Errorf("reason %d: got %s, want %s", reason, got, want)
		}
		// The same through the socket.
		s := serve(t, nil)
		s.publisher.publish = func(context.Context) error { return &publisher.Error{Reason: reason, Err: errTest} }
		_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil))
		wantStatus(t, err, want, "for a test")
	}
}

func TestAsStatus(t *testing.T) {
	busy := &publisher.Error{Reason: publisher.ReasonBusy, Err: errTest}
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
		{"a reason beats cancellation", &publisher.Error{Reason: publisher.ReasonBusy, Err: canceled}, codes.Aborted, "open the mount: context canceled"},
	} {
		t.Run(test.name, func(t *testing.T) { wantStatus(t, asStatus(test.err), test.code, test.text) })
	}
}
