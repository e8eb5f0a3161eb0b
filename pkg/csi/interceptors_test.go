package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/internal/leak"
)

// canary stands for what must not get into a log or an answer.
const canary = leak.Value

func TestNothingOfARequestIsLogged(t *testing.T) {
	s := serve(t, nil)
	req := publishRequestOf(func(req *csi.NodePublishVolumeRequest) {
		req.VolumeContext["sources"] = canary
		req.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = canary
		req.Secrets = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": canary}
		req.PublishContext = map[string]string{"x": canary}
		req.VolumeCapability.GetMount().MountFlags = []string{canary}
	})
	if _, err := s.node.NodePublishVolume(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	s.publisher.publish = func(context.Context) error { return errTest }
	if _, err := s.node.NodePublishVolume(t.Context(), req); err == nil {
		t.Fatal("no error")
	}
	req.VolumeCapability.GetMount().VolumeMountGroup = canary
	req.VolumeId = testID
	if _, err := s.node.NodePublishVolume(t.Context(), req); err == nil {
		t.Fatal("no error")
	}
	// What is not this call's id is not repeated; in the log it is needed.
	req.VolumeId = "no-id/"
	if _, err := s.node.NodePublishVolume(t.Context(), req); err == nil || strings.Contains(err.Error(), req.VolumeId) {
		t.Fatalf("got %v", err)
	}
	req.VolumeId = strings.Repeat("x", 1<<20)
	if _, err := s.node.NodePublishVolume(t.Context(), req); err == nil {
		t.Fatal("no error")
	}
	if line := s.logs.with("CSI call failed", `xxx... (1048576 bytes)`); len(line) != 1 || len(line[0]) > 1000 {
		t.Errorf("an id of a megabyte has %d lines", len(line))
	}
	// The logs are searched for canary at the end of the test, and each answer as it comes.
	if len(s.logs.with("CSI call failed", `volumeID="no-id/"`)) != 1 {
		t.Errorf("the log lacks a line: %s", s.logs)
	}
}

// TestEachFailureIsLogged once, with its code and its pod, also one that differs from the one before by its text only.
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
	for text, want := range map[string]int{"connection refused": 1, "mounts don't propagate": 2} {
		if lines := s.logs.with(`"CSI call failed"`, text, `code="Unavailable"`, fmt.Sprintf("pod=%q", pod)); len(lines) != want {
			t.Errorf("%s: %d lines, want %d, in %s", text, len(lines), want, s.logs)
		}
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
			if got := s.logs.with(canary); len(got) > 0 {
				t.Errorf("the panic's value was logged: %q", got)
			}
			if got := s.logs.with("CSI call panicked", "panicType=", `volumeID="`+testID+`"`); len(got) != 1 {
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
