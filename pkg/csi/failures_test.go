package csi

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOnlyNewFailuresAreNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures()
		const publish, unpublish = "NodePublishVolume", "NodeUnpublishVolume"
		fails := func(method, id, text string) bool { return f.isNews(method, id, fmt.Errorf("%s", text)) }
		for _, step := range []struct {
			method, id, text string
			news             bool
		}{
			{publish, "v1", "a is missing", true},
			{publish, "v1", "a is missing", false},
			{publish, "v2", "a is missing", true},
			{publish, "v1", "b is missing", true},
			{publish, "v1", "a is missing", false}, // two failures take turns
			{unpublish, "v1", "a is missing", true},
			{publish, "v3", "full: 10 of 11 bytes", true},
			{publish, "v3", "full: 9 of 110 bytes", false},
		} {
			if news := fails(step.method, step.id, step.text); news != step.news {
				t.Errorf("%+v is news: %t", step, news)
			}
		}
		for i, text := range []string{"connection refused", "EOF"} {
			if news := f.isNews(publish, "v5", status.Error(codes.Unavailable, text)); news != (i == 0) {
				t.Errorf("Unavailable: %s is news: %t", text, news)
			}
		}
		f.forget(publish, "v2")
		if !fails(publish, "v2", "a is missing") {
			t.Error("a failure after a success is no news")
		}
		f.forget(unpublish, "v1")
		if !fails(publish, "v1", "a is missing") {
			t.Error("a failed publish after an unpublish is no news")
		}
		news := 0
		for i := range 100 {
			if fails(publish, "v4", string(rune('a'+i))) {
				news++
			}
		}
		if news != maxFailures {
			t.Errorf("of 100 different failures %d were news", news)
		}
		<-time.After(failureTime + time.Second)
		if !fails(publish, "v3", "full: 10 of 11 bytes") {
			t.Error("a failure after a long time is no news")
		}
		if len(f.of) != 1 {
			t.Errorf("failures of %d volumes are kept", len(f.of))
		}
	})
}

// TestRetriesAreLoggedOnce: the kubelet repeats a call until it succeeds.
func TestRetriesAreLoggedOnce(t *testing.T) {
	s := serve(t, nil)
	s.publisher.publish = func(context.Context) error { return errTest }
	req := publishRequestOf(nil)
	for range 10 {
		if _, err := s.node.NodePublishVolume(t.Context(), req); err == nil {
			t.Fatal("no error")
		}
	}
	pod := req.GetVolumeContext()["csi.storage.k8s.io/pod.namespace"] + "/" + req.GetVolumeContext()["csi.storage.k8s.io/pod.name"]
	if lines := s.logs.with(`"CSI call failed"`, fmt.Sprintf("pod=%q", pod)); len(lines) != 1 {
		t.Errorf("%d lines of 10 failures in %s", len(lines), s.logs)
	}
	s.publisher.publish = nil
	if _, err := s.node.NodePublishVolume(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	s.publisher.publish = func(context.Context) error { return errTest }
	if _, err := s.node.NodePublishVolume(t.Context(), req); err == nil {
		t.Fatal("no error")
	}
	if lines := s.logs.with(`"CSI call failed"`); len(lines) != 2 {
		t.Errorf("%d lines of failures before and after a success in %s", len(lines), s.logs)
	}
	if _, err := s.identity.Probe(t.Context(), &csi.ProbeRequest{}); err != nil {
		t.Fatal(err)
	}
}
