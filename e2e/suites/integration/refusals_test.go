package integration

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// What is wrong with an id, a target or a pod is tried in e2e/suites/fuzz.
func TestMalformedPublish(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	for _, tc := range []struct {
		name   string
		change func(*csi.NodePublishVolumeRequest)
		want   string
	}{
		{"no capability", func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, "volume_capability: Required value"},
		{"block volume", func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		}, "volume_capability.mount: Required value"},
		{"mount group is a name", ofGroup("wheel"), "volume_mount_group: Invalid value"},
		{"mount group is negative", ofGroup("-1"), "volume_mount_group: Invalid value"},
		{"mount group is too large", ofGroup("2147483648"), "volume_mount_group: Invalid value"},
		{"no pod name", without("csi.storage.k8s.io/pod.name"), "podInfoOnMount"},
		{"no pod namespace", without("csi.storage.k8s.io/pod.namespace"), "podInfoOnMount"},
		{"no pod uid", without("csi.storage.k8s.io/pod.uid"), "podInfoOnMount"},
		{"not read-only", func(r *csi.NodePublishVolumeRequest) { r.Readonly = false }, "readOnly: Required value: must be true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := n.short("app")
			if err := n.Prepare(v); err != nil {
				t.Fatal(err)
			}
			req := n.PublishRequest(v)
			tc.change(req)
			_, err := n.Node().NodePublishVolume(t.Context(), req)
			wantStatus(t, err, codes.InvalidArgument, tc.want)
			if err := n.CleanUp(v); err != nil {
				t.Error(err)
			}
		})
	}
	n.wantNothingLeft()
}

func without(key string) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, key) }
}

func ofGroup(group string) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = group }
}
