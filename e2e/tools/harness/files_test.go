package harness

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

func TestVolumeIsAsTheKubeletMakesIt(t *testing.T) {
	p := &Plugin{opts: PluginOptions{Dir: t.TempDir()}}
	v := NewVolume("ns", "pod", map[string]string{"configMap": "app"})
	v.UID, v.MountGroup = "uid-1", "2000"
	req := p.PublishRequest(v)
	if !regexp.MustCompile(`^csi-[0-9a-f]{64}$`).MatchString(req.GetVolumeId()) {
		t.Errorf("volume id = %q, want csi- and a SHA-256", req.GetVolumeId())
	}
	if want := p.KubeletDir() + "/pods/uid-1/volumes/kubernetes.io~csi/settings/mount"; req.GetTargetPath() != want {
		t.Errorf("target = %q, want %q", req.GetTargetPath(), want)
	}
	if !req.GetReadonly() || req.GetVolumeCapability().GetMount().GetVolumeMountGroup() != "2000" {
		t.Errorf("request = %v, want readonly and the mount group", req)
	}
	if got := req.GetVolumeContext(); got["configMap"] != "app" || got["csi.storage.k8s.io/pod.uid"] != "uid-1" || len(got) != 6 {
		t.Errorf("volume context = %v", got)
	}
	if len(v.Attributes) != 1 {
		t.Errorf("the volume's own attributes changed: %v", v.Attributes)
	}

	if err := p.Prepare(v); err != nil {
		t.Fatal(err)
	}
	parent, err := os.Stat(filepath.Dir(p.Target(v)))
	if err != nil {
		t.Fatal(err)
	}
	if parent.Mode().Perm() != 0o750 {
		t.Errorf("mode of the target's parent = %v, want 0750", parent.Mode())
	}
	if err := os.Mkdir(p.Target(v), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := p.CleanUp(v); err == nil {
		t.Error("CleanUp passed over a target that was left behind")
	}
	if err := os.Remove(p.Target(v)); err != nil {
		t.Fatal(err)
	}
	if err := p.CleanUp(v); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(p.KubeletDir(), "pods")); err != nil || len(left) != 0 {
		t.Errorf("left of the pod: %v, %v", left, err)
	}
}
