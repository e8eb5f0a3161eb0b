package suite

import (
	"path"

	corev1 "k8s.io/api/core/v1"
)

// hostileVolumes are the names of the volumes of each pod that has some.
func hostileVolumes() []string { return []string{"atomic", "in-place"} }

// bothStrategies describes a volume of each write strategy.
func bothStrategies() []corev1.Volume {
	const sources = `
- configMap:
    name: settings
    items: [{key: key, path: key}, {key: app, path: conf/app.yaml}]
- secret: {name: login}
`
	return []corev1.Volume{
		refvol("atomic", attributes{"sources": sources}),
		refvol("in-place", attributes{"sources": sources, "writeStrategy": "InPlace"}),
	}
}

// emptyDir describes a volume that the pod may write to.
func emptyDir(name string, medium corev1.StorageMedium) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}
}

// onNode returns where on the node is what a pod has below a volume.
func (s *scene) onNode(p *pod, plugin, volume string, below ...string) string {
	return path.Join(append([]string{s.paths.pods, string(p.UID), "volumes/kubernetes.io~" + plugin, volume}, below...)...)
}

// honestPod describes a pod that does nothing but read, and has a file of its own.
func honestPod() *corev1.Pod {
	return newPod("honest", append(bothStrategies(), emptyDir("canary", corev1.StorageMediumDefault))...)
}

// hostilePod describes a pod whose first container, as root, has its volumes in every way
// that there is, and asks for write in each. The second one has them, too.
func hostilePod(name string) *corev1.Pod {
	// The neighbour is a tmpfs, too: what works there would work in the volumes.
	volumes := append(bothStrategies(), emptyDir("scratch", corev1.StorageMediumMemory))
	spec := newPod(name, volumes...)
	spec.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser:      new(int64(0)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
	}
	spec.Spec.ShareProcessNamespace = new(true)
	for _, volume := range hostileVolumes() {
		mountBelow(&spec.Spec.Containers[0], volume+":/keys/"+volume+"/key:key", volume+":/keys/"+volume+"/conf/app.yaml:conf/app.yaml", volume+":/dirs/"+volume+":conf")
	}
	spec.Spec.Containers = append(spec.Spec.Containers, newContainer("second", volumes))
	return spec
}

// ownUsers is the admin whose rights end with its own users.
const ownUsers = "own-users"

// adminPods describes hostile pods whose containers may mount.
func adminPods() []*corev1.Pod {
	sysAdmin := &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
	var specs []*corev1.Pod
	for name, rights := range map[string]*corev1.SecurityContext{
		"sys-admin": sysAdmin, "privileged": {Privileged: new(true)}, ownUsers: sysAdmin,
	} {
		spec := hostilePod(name)
		spec.Spec.HostUsers = new(name != ownUsers)
		for i := range spec.Spec.Containers {
			spec.Spec.Containers[i].SecurityContext = rights
		}
		specs = append(specs, spec)
	}
	return specs
}
