package csi

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// A CSIDriver object that loses its podInfoOnMount must not destroy volumes that are
// live, which only the Publisher knows.
func TestPublishWithoutPodInfo(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(context map[string]string)
		want   string
	}{{
		"none", func(context map[string]string) { clear(context) },
		"[volume_context[csi.storage.k8s.io/pod.namespace]: Required value: the CSIDriver object must have podInfoOnMount: true, " +
			"volume_context[csi.storage.k8s.io/pod.name]: Required value: the CSIDriver object must have podInfoOnMount: true, " +
			"volume_context[csi.storage.k8s.io/pod.uid]: Required value: the CSIDriver object must have podInfoOnMount: true, " +
			"volume_context[csi.storage.k8s.io/serviceAccount.name]: Required value: the CSIDriver object must have podInfoOnMount: true]",
	}, {
		"no UID", func(context map[string]string) { delete(context, "csi.storage.k8s.io/pod.uid") },
		"volume_context[csi.storage.k8s.io/pod.uid]: Required value: the CSIDriver object must have podInfoOnMount: true",
	}, {
		"forged UID", func(context map[string]string) { context["csi.storage.k8s.io/pod.uid"] = "../x" },
		`volume_context[csi.storage.k8s.io/pod.uid]: Invalid value: "../x": must be a single path element`,
	}, {
		"UID with a line break", func(context map[string]string) { context["csi.storage.k8s.io/pod.uid"] = "x\ny" },
		`volume_context[csi.storage.k8s.io/pod.uid]: Invalid value: "x\ny": must not contain characters that can't be printed`,
	}} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, nil)
			_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(func(req *csi.NodePublishVolumeRequest) {
				test.change(req.VolumeContext)
			}))
			if err != nil {
				t.Fatal(err)
			}
			if got := s.publisher.last(); got.PodErr == nil || got.PodErr.Error() != test.want || got.Pod != (volume.Pod{}) {
				t.Errorf("got  %v\nwant %s", got.PodErr, test.want)
			}
		})
	}
}

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
