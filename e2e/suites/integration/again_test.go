package integration

import (
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestPublishAgainIsOneMount(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	v := n.short("app")
	for range 20 { // as often as the kubelet restarts
		n.mustPublish(v)
	}
	n.wantMounts(1)
	n.wantContent(v, "key", value)
	n.mustUnpublish(v)
	n.wantNothingLeft()
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

func TestRepublishOfALiveVolumeNeverFails(t *testing.T) {
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	v := n.short("app")
	n.mustPublish(v)
	n.deleteConfigMap("app")
	n.mustPublish(v)
	n.wantContent(v, "key", value)

	// What the kubelet may change from one call to the next is not compared.
	req := n.PublishRequest(v)
	req.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = `{"": {"token": "` + n.canary() + `"}}`
	req.Secrets = map[string]string{"token": n.canary()}
	req.VolumeCapability.GetMount().MountFlags = []string{"noatime"}
	if _, err := n.Node().NodePublishVolume(t.Context(), req); err != nil {
		t.Errorf("with another token: %v", err)
	}

	if err := shared.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := shared.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}()
	n.mustPublish(v)
	n.wantContent(v, "key", value)
}

func TestOneIDWithAnotherSpec(t *testing.T) {
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	n.configMap("other", map[string]string{"key": n.canary()})
	v := n.short("app")
	n.mustPublish(v)
	for _, tc := range []struct {
		name, text string
		change     func(req *csi.NodePublishVolumeRequest)
	}{
		{"another attribute", "volume attributes", func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["configMap"] = "other" }},
		{"one attribute more", "volume attributes", func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["defaultMode"] = "0400" }},
		{"another target", "target path", func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath = filepath.Join(filepath.Dir(r.TargetPath), "mount2")
		}},
		{"another pod", "pod UID", func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/pod.uid"] = "another" }},
		{"no longer read-only", "readonly", func(r *csi.NodePublishVolumeRequest) { r.Readonly = false }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := n.PublishRequest(v)
			tc.change(req)
			_, err := n.Node().NodePublishVolume(t.Context(), req)
			wantStatus(t, err, codes.AlreadyExists, tc.text)
		})
	}
	n.wantMounts(1)
	n.wantContent(v, "key", value)
	changed := n.canary()
	n.configMap("app", map[string]string{"key": changed})
	n.arrives(v, "key", changed, soon)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
