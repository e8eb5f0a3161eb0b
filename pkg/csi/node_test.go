package csi

import (
	"maps"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

func TestPublishHandsOverWhatItNeeds(t *testing.T) {
	s := serve(t, nil)
	_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(func(req *csi.NodePublishVolumeRequest) {
		req.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = `{"":{"token":"x"}}`
		req.VolumeCapability.GetMount().VolumeMountGroup = "2000"
		req.Secrets = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": "x"}
	}))
	if err != nil {
		t.Fatal(err)
	}
	got := s.publisher.last()
	if got.VolumeID != testID || got.Target != testTarget || !got.ReadOnly || got.PodErr != nil ||
		got.Pod != (volume.Pod{Namespace: "shop", Name: "pod-1", UID: "uid-1", ServiceAccount: "default"}) {
		t.Errorf("got %+v", got)
	}
	if !maps.Equal(got.Attributes, map[string]string{"configMap": "app"}) {
		t.Errorf("got the attributes %v", got.Attributes)
	}
	if got.FSGroup == nil || *got.FSGroup != 2000 {
		t.Errorf("got the group %v", got.FSGroup)
	}
}

// Whether a volume needs the flag is not decided here: a live one does not fail on it
// with InvalidArgument.
func TestPublishHandsOverWritable(t *testing.T) {
	s := serve(t, nil)
	_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(func(req *csi.NodePublishVolumeRequest) { req.Readonly = false }))
	if err != nil || s.publisher.last().ReadOnly {
		t.Errorf("got %v", err)
	}
}

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

const (
	idForm    = `must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`
	groupForm = "must be a decimal group id from 0 to 2147483647"
)

func TestMalformedRequests(t *testing.T) {
	s := serve(t, nil)
	long := strings.Repeat("x", 129)
	publish := func(change func(*csi.NodePublishVolumeRequest)) func() error {
		return func() error {
			_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(change))
			return err
		}
	}
	unpublish := func(id, target string) func() error {
		return func() error {
			_, err := s.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
			return err
		}
	}
	stats := func(id, path string) func() error {
		return func() error {
			_, err := s.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
			return err
		}
	}
	withGroup := func(group string) func() error {
		return publish(func(req *csi.NodePublishVolumeRequest) { req.VolumeCapability.GetMount().VolumeMountGroup = group })
	}
	for _, test := range []struct {
		name string
		call func() error
		text string
	}{
		{"publish: no id", publish(func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }), "volume_id: Required value"},
		{"publish: id that climbs", publish(func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "../x" }), "volume_id: Invalid value: a string of 4 bytes: " + idForm},
		{"publish: hidden id", publish(func(r *csi.NodePublishVolumeRequest) { r.VolumeId = ".x" }), "volume_id: Invalid value: a string of 2 bytes: " + idForm},
		{"publish: id with a line break", publish(func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "x\n" }), "volume_id: Invalid value: a string of 2 bytes: " + idForm},
		{"publish: long id", publish(func(r *csi.NodePublishVolumeRequest) { r.VolumeId = long }), "volume_id: Invalid value: a string of 129 bytes: " + idForm},
		{"publish: no target", publish(func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }), "target_path: Required value"},
		{"publish: no capability", publish(func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }), "volume_capability: Required value"},
		{
			"publish: no access type", publish(func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessType = nil }),
			"volume_capability.mount: Required value: block volumes are not supported",
		},
		{"publish: block", publish(func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		}), "volume_capability.mount: Required value: block volumes are not supported"},
		{"publish: group name", withGroup("staff"), "volume_capability.mount.volume_mount_group: Invalid value: a string of 5 bytes: " + groupForm},
		{"publish: negative group", withGroup("-1"), "volume_capability.mount.volume_mount_group: Invalid value: a string of 2 bytes: " + groupForm},
		{"publish: large group", withGroup("2147483648"), "volume_capability.mount.volume_mount_group: Invalid value: a string of 10 bytes: " + groupForm},
		{"publish: fraction", withGroup("1.5"), "volume_capability.mount.volume_mount_group: Invalid value: a string of 3 bytes: " + groupForm},
		{"publish: octal", withGroup("0x10"), "volume_capability.mount.volume_mount_group: Invalid value: a string of 4 bytes: " + groupForm},
		{"unpublish: no id", unpublish("", testTarget), "volume_id: Required value"},
		{"unpublish: bad id", unpublish("a/b", testTarget), "volume_id: Invalid value: a string of 3 bytes: " + idForm},
		{"unpublish: no target", unpublish(testID, ""), "target_path: Required value"},
		{"stats: no id", stats("", testTarget), "volume_id: Required value"},
		{"stats: bad id", stats("a b", testTarget), "volume_id: Invalid value: a string of 3 bytes: " + idForm},
		{"stats: no path", stats(testID, ""), "volume_path: Required value"},
	} {
		t.Run(test.name, func(t *testing.T) { wantStatus(t, test.call(), codes.InvalidArgument, test.text) })
	}
	if got := s.publisher.last(); got.VolumeID != "" || s.publisher.id != "" {
		t.Errorf("a malformed request got through: %+v", got)
	}
}

func TestWellFormedRequests(t *testing.T) {
	s := serve(t, nil)
	for _, id := range []string{"a", "A.b_c-9", strings.Repeat("x", 128), "csi-" + strings.Repeat("0f", 32)} {
		if _, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(func(r *csi.NodePublishVolumeRequest) { r.VolumeId = id })); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	for group, want := range map[string]int64{"0": 0, "1": 1, "2147483647": 1<<31 - 1} {
		_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.GetMount().VolumeMountGroup = group
		}))
		if got := s.publisher.last().FSGroup; err != nil || got == nil || *got != want {
			t.Errorf("group %s: got %v, %v", group, got, err)
		}
	}
	_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil))
	if err != nil || s.publisher.last().FSGroup != nil {
		t.Errorf("without a group: got %v, %v", s.publisher.last().FSGroup, err)
	}
}

func TestUnpublish(t *testing.T) {
	s := serve(t, nil)
	req := &csi.NodeUnpublishVolumeRequest{VolumeId: testID, TargetPath: testTarget}
	if _, err := s.node.NodeUnpublishVolume(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if s.publisher.id != testID || s.publisher.target != testTarget {
		t.Errorf("got %s, %s", s.publisher.id, s.publisher.target)
	}
	s.publisher.unpublish = func() error { return &publisher.Error{Reason: publisher.ReasonBusy, Err: errTest} }
	_, err := s.node.NodeUnpublishVolume(t.Context(), req)
	wantStatus(t, err, codes.Aborted, "for a test")
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

func TestCapabilitiesAndIdentity(t *testing.T) {
	s := serve(t, nil)
	capabilities, err := s.node.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[csi.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range capabilities.GetCapabilities() {
		got[c.GetRpc().GetType()] = true
	}
	want := map[csi.NodeServiceCapability_RPC_Type]bool{
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP: true,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS:   true,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got the capabilities %v", got)
	}
	info, err := s.node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil || info.GetNodeId() != "node-1" || info.GetMaxVolumesPerNode() != 0 || info.GetAccessibleTopology() != nil {
		t.Errorf("got %v, %v", info, err)
	}
	plugin, err := s.identity.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || plugin.GetName() != testDriver || plugin.GetVendorVersion() != "v1.2.3" {
		t.Errorf("got %v, %v", plugin, err)
	}
	services, err := s.identity.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil || len(services.GetCapabilities()) != 0 {
		t.Errorf("got %v, %v", services, err)
	}
	if probe, err := s.identity.Probe(t.Context(), &csi.ProbeRequest{}); err != nil || probe.GetReady() != nil {
		t.Errorf("got %v, %v", probe, err)
	}
	_, err = s.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{})
	wantStatus(t, err, codes.Unimplemented, "method NodeStageVolume not implemented")
}
