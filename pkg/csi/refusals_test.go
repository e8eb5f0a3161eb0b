package csi

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	refvolstatus "github.com/refvol/refvol/pkg/status"
)

// refused returns what a server tells of failed publishes.
func refused(s *Server) (texts []string) {
	for _, r := range s.Refused() {
		texts = append(texts, fmt.Sprintf("%s %s of %s: %s: %s", r.VolumeID, r.Name, r.Pod, r.Code, r.Message))
	}
	slices.Sort(texts)
	return texts
}

// TestRefusals: the last failure of each volume is told until a publish succeeds or the volume goes.
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
	if _, err := s.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v1", TargetPath: "/t"}); err != nil {
		t.Fatal(err)
	}
	want()
}

// TestRefusalsAreBounded in time and number.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{refusals: refusals{all: map[string]refvolstatus.Refusal{}}}
		for i := range maxRefusals + 1 {
			s.refusals.note(&csi.NodePublishVolumeRequest{VolumeId: fmt.Sprint("v", i), TargetPath: "/a/b/mount"}, status.Error(codes.Internal, "x"))
		}
		if n := len(refused(s)); n != maxRefusals {
			t.Errorf("%d are told", n)
		}
		fail := func(id, text string) {
			s.refusals.note(&csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: "/a/b/mount"}, status.Error(codes.Internal, text))
		}
		if fail("v0", "news"); len(refused(s)) != maxRefusals || s.refusals.all["v0"].Message != "news" {
			t.Errorf("of a full list, v0 says %q", s.refusals.all["v0"].Message)
		}
		<-time.After(refusalTime + time.Second)
		if fail("later", "x"); len(s.refusals.all) != 1 { // also if nobody asks for the status
			t.Errorf("%d are kept", len(s.refusals.all))
		}
		<-time.After(refusalTime + time.Second)
		if n := len(refused(s)); n != 0 {
			t.Errorf("%d are told after ten minutes", n)
		}
	})
}
