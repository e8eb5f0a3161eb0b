package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestMalformedPublish(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	for _, tc := range []struct {
		name   string
		change func(*csi.NodePublishVolumeRequest)
		want   string
	}{
		{"no id", func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }, "volume_id: Required value"},
		{"id with a slash", func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "../x" }, "volume_id: Invalid value"},
		{"id too long", func(r *csi.NodePublishVolumeRequest) { r.VolumeId = strings.Repeat("x", 129) }, "volume_id: Invalid value"},
		{"no target", func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }, "target_path: Required value"},
		{"relative target", func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "pods/x" }, "target_path: Invalid value"},
		{"target elsewhere", func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "/etc/mount" }, "target_path: Invalid value"},
		{"target with dots", func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath = filepath.Dir(r.TargetPath) + "/../../../../x/volumes/mount"
		}, "target_path: Invalid value"},
		{"target in an emptyDir", func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath = strings.Replace(r.TargetPath, "kubernetes.io~csi", "kubernetes.io~empty-dir", 1)
		}, "/volumes/kubernetes.io~csi/<volume name>/mount"},
		{"target with a zero byte", func(r *csi.NodePublishVolumeRequest) { r.TargetPath += "\x00" }, `mount\x00": must be `},
		{"target of megabytes", func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath = "/" + strings.Repeat("x", 1<<20)
		}, "target_path: Invalid value: a path of 1048577 bytes: must be "},
		{"target of another pod", func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext["csi.storage.k8s.io/pod.uid"] = "another"
		}, "target_path: Invalid value"},
		{"no capability", func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, "volume_capability: Required value"},
		{"block volume", func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		}, "volume_capability.mount: Required value"},
		{"mount group is a name", func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.GetMount().VolumeMountGroup = "wheel"
		}, "volume_mount_group: Invalid value"},
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

func TestMalformedUnpublish(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	emptyDir := filepath.Join(n.KubeletDir(), "pods/uid-other/volumes/kubernetes.io~empty-dir/cache")
	if err := os.MkdirAll(emptyDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, id, target, want string }{
		{"no id", "", "/x", "volume_id: Required value"},
		{"no target", "csi-1", "", "target_path: Required value"},
		{"id with a slash", "../x", "/x", "volume_id: Invalid value"},
		{"target elsewhere", "csi-1", "/etc", "target_path: "},
		{"target with dots", "csi-1", n.KubeletDir() + "/pods/../../state", "target_path: "},
		{"relative target", "csi-1", "x", "target_path: "},
		{"a pod's emptyDir", "csi-1", emptyDir, fmt.Sprintf("target_path: Invalid value: %q: must be %s/pods/<pod UID>/volumes/kubernetes.io~csi/<volume name>/mount", emptyDir, n.KubeletDir())},
		{"target with a zero byte", "csi-1", n.Target(n.short("app")) + "\x00", "target_path: Invalid value: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := n.Node().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: tc.id, TargetPath: tc.target})
			wantStatus(t, err, codes.InvalidArgument, tc.want)
		})
	}
	if _, err := os.Stat(emptyDir); err != nil {
		t.Error(err)
	}
}
