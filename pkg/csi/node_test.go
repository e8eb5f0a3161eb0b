package csi

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/pkg/publisher"
)

func TestVolumeStats(t *testing.T) {
	usage := publisher.Usage{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}
	req := &csi.NodeGetVolumeStatsRequest{VolumeId: testID, VolumePath: testTarget}
	s := serve(t, nil)
	s.publisher.stats = usage
	got, err := s.node.NodeGetVolumeStats(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
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
	s.publisher.statsErr = &publisher.Error{Reason: publisher.ReasonNotFound, Err: errTest}
	_, err = s.node.NodeGetVolumeStats(t.Context(), req)
	wantStatus(t, err, codes.NotFound, "for a test")
}
