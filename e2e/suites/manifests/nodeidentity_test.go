package manifests

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

const nodeIdentityPolicy = "refvol-node-identity"

// places are fields of a pod's spec that name an object: each sets one.
func places() map[string]func(spec *corev1.PodSpec, name string) {
	local := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	ref := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	mounted := func(spec *corev1.PodSpec, source corev1.VolumeSource) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "native", VolumeSource: source})
	}
	projected := func(spec *corev1.PodSpec, source corev1.VolumeProjection) {
		mounted(spec, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{DownwardAPI: &corev1.DownwardAPIProjection{}}, source,
		}}})
	}
	variable := func(c *corev1.Container, source *corev1.EnvVarSource) {
		c.Env = append(c.Env, corev1.EnvVar{Name: "A", Value: "x"}, corev1.EnvVar{Name: "B", ValueFrom: source})
	}
	all := map[string]func(*corev1.PodSpec, string){
		"configMap": func(s *corev1.PodSpec, name string) {
			mounted(s, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local(name)}})
		},
		"projected configMap": func(s *corev1.PodSpec, name string) {
			projected(s, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local(name)}})
		},
		"configMapRef": func(s *corev1.PodSpec, name string) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local(name)}}}
		},
		"configMapKeyRef of an init container": func(s *corev1.PodSpec, name string) {
			s.InitContainers = []corev1.Container{{Name: "i", Image: "localhost/none"}}
			variable(&s.InitContainers[0], &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local(name), Key: "k"}})
		},
		"secret": func(s *corev1.PodSpec, name string) {
			mounted(s, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}})
		},
		"projected secret": func(s *corev1.PodSpec, name string) {
			projected(s, corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: local(name)}})
		},
		"secretRef of an init container": func(s *corev1.PodSpec, name string) {
			s.InitContainers = []corev1.Container{{Name: "i", Image: "localhost/none", EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local(name)}},
			}}}
		},
		"secretKeyRef": func(s *corev1.PodSpec, name string) {
			variable(&s.Containers[0], &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local(name), Key: "k"}})
		},
		"imagePullSecrets": func(s *corev1.PodSpec, name string) { s.ImagePullSecrets = []corev1.LocalObjectReference{local(name)} },
		"none": func(s *corev1.PodSpec, _ string) {
			mounted(s, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Mi"))}})
		},
	}
	for place := range withSecretRef(nil) {
		all[place] = func(s *corev1.PodSpec, name string) { mounted(s, withSecretRef(ref(name))[place]) }
	}
	return all
}

// withSecretRef are volumes of others that name a Secret.
func withSecretRef(ref *corev1.LocalObjectReference) map[string]corev1.VolumeSource {
	name := ""
	if ref != nil {
		name = ref.Name
	}
	return map[string]corev1.VolumeSource{
		"azureFile":  {AzureFile: &corev1.AzureFileVolumeSource{SecretName: name, ShareName: "s"}},
		"cephfs":     {CephFS: &corev1.CephFSVolumeSource{Monitors: []string{"m"}, SecretRef: ref}},
		"cinder":     {Cinder: &corev1.CinderVolumeSource{VolumeID: "v", SecretRef: ref}},
		"flexVolume": {FlexVolume: &corev1.FlexVolumeSource{Driver: "d", SecretRef: ref}},
		"rbd":        {RBD: &corev1.RBDVolumeSource{CephMonitors: []string{"m"}, RBDImage: "i", SecretRef: ref}},
		"scaleIO":    {ScaleIO: &corev1.ScaleIOVolumeSource{Gateway: "g", System: "s", VolumeName: "v", SecretRef: ref}},
		"iscsi": {ISCSI: &corev1.ISCSIVolumeSource{
			TargetPortal: "1.2.3.4", IQN: "iqn.2001-04.com.example:storage", SessionCHAPAuth: true, SecretRef: ref,
		}},
		"storageos":            {StorageOS: &corev1.StorageOSVolumeSource{VolumeName: "v", SecretRef: ref}},
		"nodePublishSecretRef": {CSI: &corev1.CSIVolumeSource{Driver: "csi.example.com", NodePublishSecretRef: ref}},
	}
}

// TestNodeIdentityPolicy has the API server judge pods with the policy in force.
func TestNodeIdentityPolicy(t *testing.T) {
	pods, own := shared.Client().CoreV1().Pods(consumer), inline(attributes{"configMap": "app"})
	old, err := pods.Create(t.Context(), podWith("old", own), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	install(t, "node-identity")
	awaitRefusal(t, podWith("sentinel", own), "ValidatingAdmissionPolicy '"+nodeIdentityPolicy+"'")
	t.Run("names", wantsNames)
	t.Run("sources", seesKindsInSources)
	t.Run("others", func(t *testing.T) { leavesOthers(t, old) })
}

// wantsNames has pods whose spec names an object somewhere, or not, and whose volume
// names it, or another: the policy refuses those whose spec does not name what the volume shows.
func wantsNames(t *testing.T) {
	for place, set := range places() {
		for _, named := range []string{"app", "another"} {
			for attribute, kind := range map[string]volume.Kind{"configMap": volume.ConfigMap, "secret": volume.Secret} {
				created := podWith("app", inline(attributes{attribute: "app"}))
				set(&created.Spec, named)
				shown := volume.Ref{Kind: kind, Namespace: consumer, Name: "app"}
				err := try(t.Context(), created)
				if slices.Contains(pod.Refs(&created.Spec, consumer), shown) {
					wantRefusal(t, err)
				} else {
					wantRefusal(t, err, "ValidatingAdmissionPolicy '"+nodeIdentityPolicy+"'", "volume settings: "+attribute+
						": Forbidden: the pod's spec does not name "+shown.String()+" itself, and this node's plugin runs with --identity=node: "+
						"add a volume of the pod that names it, and show that by a volume source")
				}
				if t.Failed() {
					t.Fatalf("%s names %s, and the volume shows %s", place, named, shown)
				}
			}
		}
	}
}

// seesKindsInSources: in YAML the policy sees only of which kind there is an object,
// and refuses it if the spec names none of that kind. The plugin sees the rest.
func seesKindsInSources(t *testing.T) {
	const noConfigMap, noSecret = "sources: Forbidden: the pod's spec names no ConfigMap itself", "sources: Forbidden: the pod's spec names no Secret itself"
	for sources, says := range map[string][]string{
		"- configMap: {name: app}":                                 {noConfigMap},
		"[{configMap: {name: app}}]":                               {noConfigMap},
		`[{"configMap": {"name": "app"}}]`:                         {noConfigMap},
		`[{"configMap":{"name":"app"}}]`:                           {noConfigMap},
		"- secret:\n    name: app":                                 {noSecret},
		"- env: {path: e, envFrom: [{configMapRef: {name: app}}]}": {noConfigMap},
		"- env:\n    path: e\n    env:\n    - name: A\n      valueFrom:\n        secretKeyRef: {name: app, key: k}": {noSecret},
		"- volume: {name: secret}":                         nil,
		"- volume: {name: native} # a configMap, a secret": nil,
		"- podEnv: {path: configMap.env, container: c}":    nil,
		"- configMap: {name: kube-root-ca.crt}":            nil, // which the token's volume names
		`[{"config\u004dap": {"name": "app"}}]`:            nil, // which the plugin refuses
	} {
		err := try(t.Context(), podWith("app", inline(attributes{"sources": sources})))
		wantRefusal(t, err, says...)
		// An object of that kind that the spec names may be the one.
		pod := podWith("app", inline(attributes{"sources": sources}))
		places()["configMap"](&pod.Spec, "x")
		places()["secretKeyRef"](&pod.Spec, "x")
		wantRefusal(t, try(t.Context(), pod))
		if t.Failed() {
			t.Fatalf("sources %q", sources)
		}
	}
}

// leavesOthers: other pods, and volumes of the driver that show what the pod itself names, come and go as before.
func leavesOthers(t *testing.T, old *corev1.Pod) {
	leavesAlone(t, old)
	foreign := inline(attributes{"configMap": "app"})
	foreign.CSI.Driver = "csi.example.com"
	for _, pod := range []*corev1.Pod{
		podWith("app"), podWith("app", foreign), podWith("app", inline(nil)), podWith("app", inline(attributes{"volume": "native"})),
		podWith("app", repeat(20, attributes{"sources": "#" + strings.Repeat("configMap ", volume.MaxAttributesSize/10-1)})...),
	} {
		wantRefusal(t, try(t.Context(), pod))
	}
	several := podWith("app", inline(attributes{"configMap": "app"}), inline(attributes{"volume": "native"}), inline(attributes{"configMap": "more"}))
	wantRefusal(t, try(t.Context(), several), "volume settings: ", `"default/app"`, "; volume settings-2: ", `"default/more"`)
}
