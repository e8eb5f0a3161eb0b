package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/pkg/loglimit"
)

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
			if got := s.logs.With(canary); len(got) > 0 {
				t.Errorf("the panic's value was logged: %q", got)
			}
			if got := s.logs.With("CSI call panicked", "panicType=", `volumeID="`+testID+`"`); len(got) != 1 {
				t.Errorf("the panic was logged %d times", len(got))
			}
			if !strings.Contains(s.logs.String(), "fakePublisher") {
				t.Error("the log has no stack")
			}
			if got := s.observed.get(); !slices.Equal(got, []observation{{"NodePublishVolume", codes.Unavailable.String()}}) {
				t.Errorf("observed %v", got)
			}
			s.publisher.publish = nil
			if _, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil)); err != nil {
				t.Errorf("the server did not survive: %v", err)
			}
		})
	}
}
