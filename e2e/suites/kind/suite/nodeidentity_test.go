package suite

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	// nodeIdentityDriver is that of the third plugin that the runner installs, which reads
	// objects with its node's rights.
	nodeIdentityDriver    = "node-identity.refvol.dev"
	nodeIdentityNamespace = "refvol-node-identity"
)

// asNode describes a volume of the driver that reads as the node, which shows what the pod's own
// volume shown names.
func asNode(name, shown string) corev1.Volume {
	v := refvol(name, attributes{"volume": shown})
	v.CSI.Driver = nodeIdentityDriver
	return v
}

// withUnmounted adds volumes to a pod that no container mounts.
func withUnmounted(spec *corev1.Pod, volumes ...corev1.Volume) *corev1.Pod {
	spec.Spec.Volumes = append(spec.Spec.Volumes, volumes...)
	return spec
}

// one is the view of one object, which must be there or not.
func one(s corev1.VolumeProjection) view { return view{sources: []corev1.VolumeProjection{s}} }

// A plugin without a right to any object shows a pod what the pod's own volumes name, whether or not
// a container mounts them. Of what is optional and missing nothing is shown, nothing waits for
// it, and it comes when it is created. When the pod goes it leaves nothing.
func TestNodeIdentity(t *testing.T) {
	t.Parallel()
	needsNodes(t, "looks at a node's files and mounts")
	n := newNamespace(t)
	n.createConfigMap("settings", object{"app.yaml": "first"})
	n.createSecret("db", object{"password": canary("first")})
	everything := view{projected: true, sources: []corev1.VolumeProjection{
		source(kindConfigMap, "settings", item("app.yaml", "conf/app.yaml")), source(kindSecret, "db"), optional(source(kindSecret, "late")),
	}}
	spec := newPod("reader",
		asNode("settings", "of-configmap"), asNode("db", "of-secret"), asNode("everything", "of-both"), asNode("later", "of-none"),
		asNode("twice", "mounted"), one(source(kindConfigMap, "settings")).native("mounted"))
	p := n.start(withUnmounted(spec,
		one(source(kindConfigMap, "settings")).native("of-configmap"), one(source(kindSecret, "db")).native("of-secret"),
		everything.native("of-both"), one(optional(source(kindConfigMap, "none"))).native("of-none"),
		// Nobody shows this one, and the kubelet doesn't ask for it.
		one(source(kindSecret, "never")).native("of-nobody")))
	files := func(text string) map[string]string {
		return map[string]string{
			"settings/app.yaml": text, "twice/app.yaml": text, "everything/conf/app.yaml": text,
			"db/password": canary(text), "everything/password": canary(text),
		}
	}
	for file, text := range files("first") {
		p.awaitText(mountDir+file, text, podTimeout)
	}
	n.updateConfigMap("settings", object{"app.yaml": "second"})
	n.updateSecret("db", object{"password": canary("second")})
	n.createSecret("late", object{"token": canary("late")})
	n.createConfigMap("none", object{"key": "here"})
	for file, text := range files("second") {
		p.awaitText(mountDir+file, text, podTimeout)
	}
	p.awaitText(mountDir+"everything/token", canary("late"), podTimeout)
	p.awaitText(mountDir+"later/key", "here", podTimeout)

	inspector := n.startOnNode("inspector", p.Spec.NodeName)
	left := leftovers{inspector: inspector, paths: pluginPaths(t, n.pluginOf(t, nodeIdentityNamespace, p.Spec.NodeName)), of: p}
	left.there(t)
	p.delete()
	left.awaitNone(t)
}
