package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/publisher"
	refvolstatus "github.com/refvol/refvol/pkg/status"
)

func TestVolumeStats(t *testing.T) {
	usage := publisher.Usage{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}
	req := &csi.NodeGetVolumeStatsRequest{VolumeId: testID, VolumePath: testTarget}
	s := serve(t, nil)
	s.publisher.stats = usage
	got := must.Get(s.node.NodeGetVolumeStats(t.Context(), req))(t)
	if len(got.GetUsage()) != 2 {
		t.Fatalf("got %v", got.GetUsage())
	}
	bytes, inodes := got.GetUsage()[0], got.GetUsage()[1]
	if bytes.GetUnit() != csi.VolumeUsage_BYTES || bytes.GetTotal() != 100 || bytes.GetAvailable() != 60 || bytes.GetUsed() != 40 {
		t.Errorf("got %v", bytes)
	}
	if inodes.GetUnit() != csi.VolumeUsage_INODES || inodes.GetTotal() != 10 || inodes.GetAvailable() != 7 || inodes.GetUsed() != 3 {
		t.Errorf("got %v", inodes)
	}
	if s.publisher.id != testID || s.publisher.target != testTarget {
		t.Errorf("asked for %s at %s", s.publisher.id, s.publisher.target)
	}
	s.publisher.statsErr = &failure.Error{Reason: failure.ReasonNotFound, Err: errTest}
	_, err := s.node.NodeGetVolumeStats(t.Context(), req)
	wantStatus(t, err, codes.NotFound, "for a test")
}

// TestCapability: a volume is mounted, and a mount group is a number that the API server accepts as fsGroup.
func TestCapability(t *testing.T) {
	const group = "volume_capability.mount.volume_mount_group: Invalid value: a string of %d bytes: must be a decimal group id from 0 to 2147483647"
	ofGroup := func(group string) *csi.VolumeCapability {
		return &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: group}}}
	}
	for name, test := range map[string]struct {
		capability *csi.VolumeCapability
		wants      int64 // the group, -1 for none
		refusal    string
	}{
		"none":            {refusal: "volume_capability: Required value"},
		"block volume":    {capability: &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Block{}}, refusal: "volume_capability.mount: Required value: block volumes are not supported"},
		"no group":        {capability: ofGroup(""), wants: -1},
		"lowest group":    {capability: ofGroup("0")},
		"highest group":   {capability: ofGroup("2147483647"), wants: 2147483647},
		"group too large": {capability: ofGroup("2147483648"), refusal: fmt.Sprintf(group, 10)},
		"negative group":  {capability: ofGroup("-1"), refusal: fmt.Sprintf(group, 2)},
		"name of a group": {capability: ofGroup("wheel"), refusal: fmt.Sprintf(group, 5)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := publishRequest(publishRequestOf(func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = test.capability }))
			if test.refusal != "" {
				wantStatus(t, err, codes.InvalidArgument, test.refusal)
				return
			}
			if err != nil || (got.FSGroup == nil) != (test.wants < 0) || got.FSGroup != nil && *got.FSGroup != test.wants {
				t.Errorf("group %v, %v, want %d", got.FSGroup, err, test.wants)
			}
		})
	}
}

// TestReadOnly: a writable request reaches the publisher as such, which refuses it for new volumes.
func TestReadOnly(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		got, err := publishRequest(publishRequestOf(func(r *csi.NodePublishVolumeRequest) { r.Readonly = readOnly }))
		if err != nil || got.ReadOnly != readOnly {
			t.Errorf("read-only %t: %t, %v", readOnly, got.ReadOnly, err)
		}
	}
}

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

// canary stands for what must not get into a log or an answer.
const canary = leak.Value

// TestEachFailureIsLogged once, with its code and its pod, also if it differs from the last one only by its text.
func TestEachFailureIsLogged(t *testing.T) {
	s := serve(t, nil)
	req := publishRequestOf(nil)
	pod := req.GetVolumeContext()["csi.storage.k8s.io/pod.namespace"] + "/" + req.GetVolumeContext()["csi.storage.k8s.io/pod.name"]
	for _, text := range []string{"connection refused", "mounts don't propagate", "mounts don't propagate"} {
		s.publisher.publish = func(context.Context) error { return status.Error(codes.Unavailable, text) }
		if _, err := s.node.NodePublishVolume(t.Context(), req); err == nil {
			t.Fatal("no error")
		}
	}
	if lines := s.logs.With(`"CSI call failed"`); len(lines) != 3 || slices.ContainsFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "I") }) {
		t.Errorf("what the kubelet gets is logged as an error: %q", lines)
	}
	for text, want := range map[string]int{"connection refused": 1, "mounts don't propagate": 2} {
		if lines := s.logs.With(`"CSI call failed"`, text, `code="Unavailable"`, fmt.Sprintf("pod=%q", pod)); len(lines) != want {
			t.Errorf("%s: %d lines, want %d, in %s", text, len(lines), want, s.logs)
		}
	}
}

// A pod whose calls fail has so many lines a minute, whatever the calls are. They don't take those of another pod.
func TestFailuresOfAPodAreLimited(t *testing.T) {
	const calls = 25 // of each of three kinds
	var leftOut atomic.Int64
	logs := &leak.Log{}
	limit := loglimit.New(leaklog.New(t, logs), func() { leftOut.Add(1) })
	defer limit.Close()
	s := serve(t, func(o *Options) { o.LogLimit = limit })
	failure := status.Error(codes.Unavailable, "no luck")
	s.publisher.publish = func(context.Context) error { return failure }
	s.publisher.unpublish, s.publisher.statsErr = func() error { return failure }, failure
	fail := func(req *csi.NodePublishVolumeRequest) {
		id, target := req.GetVolumeId(), req.GetTargetPath()
		_, publish := s.node.NodePublishVolume(t.Context(), req)
		_, unpublish := s.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
		_, stats := s.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
		for _, err := range []error{publish, unpublish, stats} {
			wantStatus(t, err, codes.Unavailable, "no luck")
		}
	}
	for range calls {
		fail(publishRequestOf(nil))
	}
	fail(publishRequestOf(func(req *csi.NodePublishVolumeRequest) {
		req.VolumeId, req.TargetPath = "other", strings.Replace(testTarget, "uid-1", "uid-2", 1)
	}))
	if n, others := len(s.logs.With(`"CSI call failed"`, testID)), len(s.logs.With(`"CSI call failed"`, `volumeID="other"`)); n != 60 || others != 3 || leftOut.Load() != 3*calls-60 {
		t.Errorf("%d lines about the pod and %d about another one, %d are left out; want 60, 3 and %d", n, others, leftOut.Load(), 3*calls-60)
	}
	limit.Close()
	if lines := logs.With("were left out", `pod="shop/pod-1" podUID="uid-1"`, fmt.Sprint("lines=", 3*calls-60)); len(lines) != 1 {
		t.Errorf("the log has %s", logs)
	}
}

func TestAPanicIsAnErrorOfItsCall(t *testing.T) {
	for name, cause := range map[string]any{
		"string": canary, "error": errors.New(canary), "struct": struct{ secret string }{canary}, "bytes": []byte(canary),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil)
			s.publisher.publish = func(context.Context) error { panic(cause) }
			_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil))
			wantStatus(t, err, codes.Unavailable, "NodePublishVolume panicked; the plugin's log has the stack")
			if got := s.logs.With("CSI call panicked", "panicType=", `volumeID="`+testID+`"`); len(got) != 1 {
				t.Errorf("the panic was logged %d times", len(got))
			}
			if !strings.Contains(s.logs.String(), "fakePublisher") {
				t.Error("the log has no stack")
			}
			if n := len(s.observed); n != 1 {
				t.Fatalf("%d calls are observed", n)
			}
			expect.Equal(t, "observed", <-s.observed, "NodePublishVolume Unavailable")
			s.publisher.publish = nil
			if _, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil)); err != nil {
				t.Errorf("the server did not survive: %v", err)
			}
		})
	}
}

// refused returns what a server reports about failed publishes.
func refused(s *Server) (texts []string) {
	for _, r := range s.Refused() {
		texts = append(texts, fmt.Sprintf("%s %s of %s: %s: %s", r.VolumeID, r.Name, r.Pod, r.Code, r.Message))
	}
	slices.Sort(texts)
	return texts
}

// TestRefusals: the last failure of each volume is reported until a publish succeeds or the volume is unpublished.
func TestRefusals(t *testing.T) {
	s := serve(t, nil)
	want := func(texts ...string) {
		t.Helper()
		if got := refused(s.Server); !slices.Equal(got, texts) {
			t.Errorf("got  %q\nwant %q", got, texts)
		}
	}
	publish := func(id string, err error) {
		s.publisher.publish = func(context.Context) error { return err }
		req := publishRequestOf(func(req *csi.NodePublishVolumeRequest) { req.VolumeId = id })
		if _, got := s.node.NodePublishVolume(t.Context(), req); status.Code(got) != status.Code(err) {
			t.Fatalf("got %v, want %v", got, err)
		}
	}
	bad := status.Error(codes.InvalidArgument, "updatePolicy: no")
	publish("v1", bad)
	publish("v2", nil)
	of := "settings of shop/pod-1: "
	want("v1 " + of + "InvalidArgument: updatePolicy: no")
	publish("v1", status.Error(codes.Aborted, "busy"))
	publish("v2", status.Error(codes.NotFound, "no key"))
	want("v1 "+of+"InvalidArgument: updatePolicy: no", "v2 "+of+"NotFound: no key")
	publish("v2", nil)
	want("v1 " + of + "InvalidArgument: updatePolicy: no")
	must.Get(s.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v1", TargetPath: "/t"}))(t)
	want()
}

// TestOldRefusalsAreDropped: a failure that is not repeated is forgotten after a time. TestRefusalsOfManyPods has how many are kept.
func TestOldRefusalsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		fail := func(id string) {
			s.refusals.record(&csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: "/a/b/mount"}, status.Error(codes.Internal, "x"))
		}
		fail("v0")
		<-time.After(refusalTime + time.Second)
		if fail("later"); len(s.refusals.all) != 1 { // also if nobody asks for the status
			t.Errorf("%d are kept", len(s.refusals.all))
		}
		<-time.After(refusalTime + time.Second)
		if n := len(refused(s)); n != 0 {
			t.Errorf("%d are reported after ten minutes", n)
		}
	})
}

// TestRefusalsOfManyPods: a namespace with hundreds of failed publishes hides neither the failures of others nor the newest ones.
func TestRefusalsOfManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at one moment, so that times give no order
		s := &Server{}
		reported := func(id string) bool {
			return slices.ContainsFunc(s.Refused(), func(r refvolstatus.Refusal) bool { return r.VolumeID == id })
		}
		fail := func(namespace string, i int) string {
			t.Helper()
			id := fmt.Sprint(namespace, "-", i)
			s.refusals.record(&csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: "/a/b/mount", VolumeContext: map[string]string{
				"csi.storage.k8s.io/pod.namespace": namespace, "csi.storage.k8s.io/pod.name": "web", "csi.storage.k8s.io/pod.uid": "uid",
				"csi.storage.k8s.io/serviceAccount.name": "default",
			}}, status.Error(codes.InvalidArgument, "x"))
			if !reported(id) {
				t.Fatalf("the newest failure, %s, is not reported", id)
			}
			return id
		}
		count := func(namespace string) (n int) {
			for _, r := range s.Refused() {
				if r.Pod.Namespace == namespace {
					n++
				}
			}
			return n
		}
		for i := range 8 {
			fail("shop", i)
		}
		for i := range 2 * maxRefusals {
			fail("noisy", i)
		}
		late := fail("late", 0)
		for i := range maxRefusals {
			fail("noisy", i) // as the kubelet retries
		}
		if n := len(s.Refused()); n != maxRefusals || count("shop") != 8 || !reported(late) {
			t.Errorf("%d failures are reported, of shop %d, of late %d", n, count("shop"), count("late"))
		}
		// The oldest one of its namespace is dropped for a newer one.
		if reported("noisy-0") || !reported("noisy-9") {
			t.Errorf("noisy-0: %t, noisy-9: %t", reported("noisy-0"), reported("noisy-9"))
		}
		// If no namespace has more than its share, the oldest of all is dropped.
		for i := range maxRefusals / 8 {
			for j := range 8 {
				fail(fmt.Sprint("ns", i), j)
			}
		}
		if n := len(s.Refused()); n != maxRefusals || reported(late) || count("shop") != 0 || count("ns0") != 8 {
			t.Errorf("%d failures are reported, of shop %d, of late %d, of ns0 %d", n, count("shop"), count("late"), count("ns0"))
		}
	})
}
