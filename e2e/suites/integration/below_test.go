package integration

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// mountingBelow returns a spec whose container mounts the driver's volume, and another one below it.
func mountingBelow(spec corev1.PodSpec, path, subPath string) corev1.PodSpec {
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	spec.Containers = []corev1.Container{{Name: "main", Image: "none", VolumeMounts: []corev1.VolumeMount{
		{Name: "settings", MountPath: "/etc/app", SubPath: subPath}, {Name: "empty", MountPath: path},
	}}}
	return spec
}

// The directory for a container's mount is there from the first moment on, and stays the same one.
func TestMountsBelow(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": "1"})
	v := n.shown(mountingBelow(nativeConfigMap("app"), "/etc/app/a/tls", ""), volumeSource())
	n.mustPublish(v)
	n.wantContent(v, "key", "1")
	was := n.wantDirectory(v, "a/tls")
	n.configMap("app", map[string]string{"key": "2"})
	n.arrives(v, "key", "2", soon)
	n.mustKill()
	n.mustStart()
	n.configMap("app", map[string]string{"key": "3"})
	n.arrives(v, "key", "3", soon)
	n.configMap("app", map[string]string{"key": "4", "a": "taken"})
	n.hasEvent(v, "VolumeUpdateFailed", `spec.containers[0].volumeMounts[1].mountPath: the directory "a/tls" for a mount can't be beside the file "a"; map the key to another path, or mount elsewhere`)
	n.wantContent(v, "key", "3")
	n.configMap("app", map[string]string{"key": "5"})
	n.arrives(v, "key", "5", soon)
	if is := n.wantDirectory(v, "a/tls"); !os.SameFile(was, is) {
		t.Error("it is another directory")
	}
	n.mustUnpublish(v)

	listed := n.volume(map[string]string{"configMap": "app", "directories": "[tls]"})
	n.mustPublish(listed)
	n.wantDirectory(listed, "tls")
	n.mustUnpublish(listed)
	n.wantNothingLeft()
}

// wantDirectory returns a directory of a volume.
func (n *node) wantDirectory(v *harness.Volume, name string) os.FileInfo {
	n.t.Helper()
	info, err := os.Stat(filepath.Join(n.Target(v), name))
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o755 {
		n.t.Fatalf("%s is %v, %v", name, info, err)
	}
	return info
}

// Where the volume has files there can be no directory for a mount.
func TestMountsBelowAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": "1"})
	spec := func() corev1.PodSpec {
		spec := nativeConfigMap("app")
		spec.Volumes[0].ConfigMap.Items = []corev1.KeyToPath{{Key: "key", Path: "conf/key"}}
		return spec
	}
	for says, v := range map[string]corev1.PodSpec{
		`spec.containers[0].volumeMounts[1].mountPath: Invalid value: "conf/tls": must not be "conf" or below it, as the file "conf/key" of spec.volumes[0].configMap.items[0].path is`: mountingBelow(spec(), "/etc/app/conf/tls", ""),
		`spec.containers[0].volumeMounts[1].mountPath: Forbidden: must not lie below spec.containers[0].volumeMounts[0], which mounts "conf" of the volume by subPath`:                  mountingBelow(spec(), "/etc/app/tls", "conf"),
	} {
		wantStatus(t, n.Publish(t.Context(), n.shown(v, volumeSource())), codes.InvalidArgument, says)
	}
	inPlace := map[string]string{"volume": "native", "writeStrategy": "InPlace"}
	v := n.shown(mountingBelow(spec(), "/etc/app/tls", "conf"), inPlace)
	n.mustPublish(v)
	was := n.wantDirectory(v, "conf/tls")
	n.configMap("app", map[string]string{"key": "2"})
	n.arrives(v, "conf/key", "2", soon)
	if is := n.wantDirectory(v, "conf/tls"); !os.SameFile(was, is) {
		t.Error("in place it is another directory")
	}
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
