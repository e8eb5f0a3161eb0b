package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/internal/leak"
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
	if lines := s.logs.with(`"CSI call failed"`); len(lines) != 3 || slices.ContainsFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "I") }) {
		t.Errorf("what the kubelet gets is logged as an error: %q", lines)
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
