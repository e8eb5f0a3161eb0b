package suite

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Nobody writes to a volume, not even root in a container whose volumeMount asks for
// a writable one.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "text"})
	volumes := []corev1.Volume{refvol("settings", attributes{"configMap": "settings"})}
	spec := newPod("writer", volumes...)
	// As root, who is refused by the file system alone.
	spec.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	spec.Spec.Containers = nil
	for name, readOnly := range map[string]bool{"writable": false, "readonly": true} {
		c := newContainer(name, volumes)
		c.VolumeMounts[0].ReadOnly = readOnly
		spec.Spec.Containers = append(spec.Spec.Containers, c)
	}
	p := n.start(spec)
	for _, c := range spec.Spec.Containers {
		for _, file := range []string{"key", "..data/key", "new"} {
			got, err := p.ask(t.Context(), c.Name, "write", mountDir+"settings/"+file, "changed")
			if err != nil {
				t.Fatal(err)
			}
			if got != "EROFS\n" {
				t.Errorf("container %s writes %s: %q", c.Name, file, got)
			}
		}
		if err := p.hasText(t.Context(), c.Name, mountDir+"settings/key", "text"); err != nil {
			t.Error(err)
		}
	}
}

// A volume that isn't declared read-only is refused, and the pod's event says what to
// set.
func TestReadOnlyMustBeSet(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "text"})
	for name, readOnly := range map[string]*bool{"unset": nil, "false": new(false)} {
		volume := refvol("settings", attributes{"configMap": "settings"})
		volume.CSI.ReadOnly = readOnly
		p := n.create(newPod(name, volume))
		t.Logf("readOnly %s: %s", name, p.awaitEvent("readOnly: Required value: must be true"))
		p.awaitEvent("csi.readOnly: true")
		if got := p.phase(t); got != corev1.PodPending {
			t.Errorf("readOnly %s: the pod is %s", name, got)
		}
	}
}
