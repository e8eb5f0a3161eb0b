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
	if _, err := s.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v1", TargetPath: "/t"}); err != nil {
		t.Fatal(err)
	}
	want()
}

// TestRefusalsAreBounded in time and number.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		for i := range maxRefusals + 1 {
			s.refusals.record(&csi.NodePublishVolumeRequest{VolumeId: fmt.Sprint("v", i), TargetPath: "/a/b/mount"}, status.Error(codes.Internal, "x"))
		}
		if n := len(refused(s)); n != maxRefusals {
			t.Errorf("%d are reported", n)
		}
		fail := func(id, text string) {
			s.refusals.record(&csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: "/a/b/mount"}, status.Error(codes.Internal, text))
		}
		if fail("v0", "news"); len(refused(s)) != maxRefusals || s.refusals.all[maxRefusals-1].Message != "news" {
			t.Errorf("of a full list, v0 says %q", s.refusals.all[maxRefusals-1].Message)
		}
		<-time.After(refusalTime + time.Second)
		if fail("later", "x"); len(s.refusals.all) != 1 { // also if nobody asks for the status
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
