package csi

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/publisher"
)

func TestVolumeStats(t *testing.T) {
	usage := publisher.Usage{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}
	req := &csi.NodeGetVolumeStatsRequest{VolumeId: testID, VolumePath: testTarget}
	s := serve(t, nil)
	s.publisher.stats = usage
	got, err := s.node.NodeGetVolumeStats(t.Context(), req)
	must(t, err)
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
	_, err = s.node.NodeGetVolumeStats(t.Context(), req)
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
