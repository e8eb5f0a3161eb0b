package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// liveCases are all cases but those at limits. In a the pod mounts the native volume a.
func liveCases(s labels) []labelCase {
	a := func() []corev1.Volume { return []corev1.Volume{ofConfigMap("a")} }
	simple := func(patch string) *corev1.Pod { return merged(mounting(a(), "a:/etc/a"), patch) }
	labelled := func(value string) *corev1.Pod { return withLabel(simple(""), liveLabel, value) }
	backup := func(leavesOut string) *corev1.Pod {
		return simple("metadata: {annotations: {example.com/team: a, " + excludes + ": '" + leavesOut + "'}}")
	}
	toA := map[string]string{"a": "refvol-a"}
	long := strings.Repeat("n", 56)
	first, second := strings.Repeat("n", 50)+strings.Repeat("a", 13), strings.Repeat("n", 50)+strings.Repeat("b", 13)
	others := foreign(showing("foreign", attributes{"volume": "a"}))
	token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
	downward := []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	return append([]labelCase{
		{name: "a ConfigMap", pod: mounting(a(), "a:/etc/a"), moves: toA},
		{name: "three of four", pod: mounting([]corev1.Volume{ofConfigMap("a"), empty("e"), ofSecret("b"), projecting("c")},
			"a:/a", "e:/e", "b:/b", "c:/c"), moves: map[string]string{"a": "refvol-a", "b": "refvol-b", "c": "refvol-c"}},
		{name: "all kinds of containers", pod: withInit(merged(simple(""), `spec: {containers: [
			{name: d, image: none, volumeMounts: [{name: a, mountPath: /d}]}, {name: e, image: none}]}`),
			container("i", "a:/i"), container("j"), sidecar("k", "a:/k")), moves: toA},
		{name: "an init container alone", pod: withInit(mounting(a()), container("i", "a:/i")), moves: toA},
		{name: "fields of a mount", pod: simple(`spec: {containers: [
			{name: c, volumeMounts: [{mountPath: /etc/a, readOnly: true, recursiveReadOnly: IfPossible}]}]}`), moves: toA},
		{name: "a generated name", pod: simple("metadata: {name: '', generateName: app-}"), moves: toA},
		{name: "backups leave out a volume already", pod: backup("cache"), moves: toA},
		{name: "backups leave out the live volume already", pod: backup("refvol-a,cache,"), moves: toA},
		{name: "backups leave out names that contain the live one's", pod: backup("my-refvol-a, refvol-a,refvol-a-2"), moves: toA},
		{name: "equal variables and ports", pod: changed(simple(""), func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}}
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, Name: "a"}, {ContainerPort: 80, Name: "b"}}
		}), moves: toA},

		{name: "another source, a token", pod: mounting([]corev1.Volume{projecting("a", token)}, "a:/a")},
		{name: "a volume of the downward API", pod: mounting([]corev1.Volume{{Name: "a", VolumeSource: corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: downward},
		}}}, "a:/a")},
		{name: "not mounted", pod: mounting(a())},
		{name: "subPath", pod: mounting(a(), "a:/etc/a/key:key")},
		{name: "subPathExpr", pod: simple(`spec: {containers: [
			{name: c, env: [{name: A, value: key}], volumeMounts: [{mountPath: /etc/a, subPathExpr: $(A)}]}]}`)},
		{name: "subPath, and as a whole in another container", pod: withInit(mounting(a(), "a:/etc/a/key:key"), container("i", "a:/etc/a")), moves: toA},
		{name: "another driver beside", pod: mounting(append(a(), others), "foreign:/b", "a:/a"), moves: toA},
		{name: "Windows by its field", pod: simple(windowsByField)},
		{name: "Windows by the node selector", pod: simple(windowsBySelector)},
		{name: "Linux by both", pod: simple("spec: {os: {name: linux}, nodeSelector: {kubernetes.io/os: linux}}"), moves: toA},
		{name: "the label false", pod: labelled("false")},
		{name: "the annotation false", pod: simple("metadata: {annotations: {refvol.dev/live: 'false'}}")},
		{name: "the label true, in another namespace", namespace: s.plain, pod: labelled("true"), moves: toA},
		{name: "another namespace", namespace: s.plain, pod: mounting(a(), "a:/etc/a")},
		{name: "kube-system", namespace: metav1.NamespaceSystem, pod: labelled("true")},
		{name: "the plugin's namespace", namespace: pluginNamespace, pod: labelled("true")},

		{name: "a mirror pod", pod: simple(mirror)},

		{name: "56 characters", pod: mounting([]corev1.Volume{ofConfigMap(long)}, long+":/a"), moves: map[string]string{long: "refvol-" + long}},
		{name: "57 characters", pod: mounting([]corev1.Volume{ofConfigMap(long + "n")}, long+"n:/a"), moves: map[string]string{long + "n": "refvol--" + strings.Repeat("n", 50) + "-0"}},
		{
			name: "63 characters that begin alike", pod: mounting([]corev1.Volume{ofConfigMap(first), ofSecret(second)}, first+":/a", second+":/b"),
			moves: map[string]string{first: "refvol--" + strings.Repeat("n", 50) + "-0", second: "refvol--" + strings.Repeat("n", 50) + "-1"},
		},
		{name: "a name that is taken", pod: mounting([]corev1.Volume{empty("refvol-a"), ofConfigMap("a")}, "refvol-a:/e", "a:/a"), moves: map[string]string{"a": "refvol--a-1"}},
		{
			name: "a name that another native volume has", pod: mounting([]corev1.Volume{ofConfigMap("a"), ofConfigMap("refvol-a")}, "refvol-a:/e", "a:/a"),
			moves: map[string]string{"a": "refvol--a-0", "refvol-a": "refvol-refvol-a"},
		},
		{name: "the author's own live volume", pod: mounting(append(a(), showing("mine", attributes{"volume": "a"})), "mine:/mine", "a:/a"), moves: toA},
		{name: "the author's own live volume alone", pod: mounting(append(a(), showing("mine", attributes{"volume": "a"})), "mine:/mine")},
		{name: "the author's own with the name of ours", pod: mounting(append(a(), showing("refvol-a", attributes{"volume": "a"})), "refvol-a:/mine", "a:/a"), moves: toA},
		{
			name: "the author's own with the name of ours, and more", pod: mounting(
				append(a(), showing("refvol-a", attributes{"volume": "a", "defaultMode": "0400"})), "refvol-a:/mine", "a:/a"),
			moves: map[string]string{"a": "refvol--a-0"},
		},
		{
			name: "another driver's with the name of ours", pod: mounting(append(a(), foreign(showing("refvol-a", attributes{"volume": "a"}))), "refvol-a:/mine", "a:/a"),
			moves: map[string]string{"a": "refvol--a-0"},
		},
		{name: "the author's own with the name of ours, writable", pod: mounting(append(a(), changedVolume(showing("refvol-a", attributes{"volume": "a"}),
			func(v *corev1.CSIVolumeSource) { v.ReadOnly = nil })), "refvol-a:/mine", "a:/a"), moves: map[string]string{"a": "refvol--a-0"}},
		{name: "both names taken", pod: mounting([]corev1.Volume{ofConfigMap("a"), empty("refvol-a"), empty("refvol--a-0")}, "a:/a")},
		{name: "50 containers with 100 volumes", pod: crossed(50, 100), moves: crossedMoves(100)},
	}, append(belowCases(), equalKeys()...)...)
}

// equalKeys are pods that the API server refuses. If two of the keys were made one, it would take the pod.
func equalKeys() []labelCase {
	a := func(texts ...string) *corev1.Pod {
		return mounting([]corev1.Volume{ofConfigMap("a"), empty("e")}, texts...)
	}
	unique, duplicate := []string{"must be unique"}, []string{"Duplicate value"}
	return []labelCase{
		{name: "a path with one volume twice", pod: a("a:/a", "a:/a"), says: unique},
		{name: "a path with two volumes", pod: a("a:/a", "e:/a"), says: unique},
		{name: "a path with two volumes, the live one last", pod: a("e:/a", "a:/a"), says: unique},
		{name: "a path with two volumes in an init container", pod: withInit(a("a:/a"), container("i", "a:/i", "e:/i")), says: unique},
		{name: "two containers of one name", pod: changed(a("a:/a"), func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, container("c", "e:/b"))
		}), says: duplicate},
		{name: "two init containers of one name", pod: withInit(a("a:/a"), container("i", "a:/i"), container("i", "e:/j")), says: duplicate},
		{name: "a container and an init container of one name", pod: withInit(a("a:/a"), container("c", "a:/i")), says: duplicate},
		{name: "two native volumes of one name", pod: mounting([]corev1.Volume{ofConfigMap("a"), ofSecret("a")}, "a:/a"), says: duplicate},
	}
}

func crossed(containers, volumes int) *corev1.Pod {
	pod := podWith("app")
	pod.Spec.Containers = nil
	var all []string
	for i := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, ofConfigMap(fmt.Sprintf("v%d", i)))
		all = append(all, fmt.Sprintf("v%d:/etc/v%d", i, i))
	}
	for i := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, container(fmt.Sprintf("c%d", i), all...))
	}
	return pod
}

func crossedMoves(volumes int) map[string]string {
	moves := map[string]string{}
	for i := range volumes {
		moves[fmt.Sprintf("v%d", i)] = fmt.Sprintf("refvol-v%d", i)
	}
	return moves
}

func ofConfigMap(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}},
	}}
}

func ofSecret(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: "db", Optional: new(true), DefaultMode: new(int32(0o400)), Items: []corev1.KeyToPath{{Key: "a", Path: "b/c", Mode: new(int32(0o440))}},
	}}}
}

func projecting(name string, more ...corev1.VolumeProjection) corev1.Volume {
	sources := append([]corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "db"}}},
	}, more...)
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
}

func empty(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// showing is a volume of the driver that shows one of the pod's.
func showing(name string, a attributes) corev1.Volume {
	v := inline(a)
	v.Name = name
	return v
}

// mounts reads volume:path:subPath.
func mounts(texts ...string) []corev1.VolumeMount {
	var all []corev1.VolumeMount
	for _, text := range texts {
		fields := append(strings.Split(text, ":"), "")
		all = append(all, corev1.VolumeMount{Name: fields[0], MountPath: fields[1], SubPath: fields[2]})
	}
	return all
}

func mounting(volumes []corev1.Volume, texts ...string) *corev1.Pod {
	return changed(podWith("app"), func(pod *corev1.Pod) {
		pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = volumes, mounts(texts...)
	})
}

func changed(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(pod)
	return pod
}

func changedVolume(v corev1.Volume, change func(*corev1.CSIVolumeSource)) corev1.Volume {
	change(v.CSI)
	return v
}

func foreign(v corev1.Volume) corev1.Volume {
	return changedVolume(v, func(v *corev1.CSIVolumeSource) { v.Driver = "csi.example.com" })
}

// What a pod may have, for merged.
const (
	windowsByField    = "spec: {os: {name: windows}}"
	windowsBySelector = "spec: {nodeSelector: {kubernetes.io/os: windows}}"
	mirror            = "{metadata: {annotations: {kubernetes.io/config.mirror: x}}, spec: {nodeName: node, automountServiceAccountToken: false}}"
)

// merged merges YAML into a pod as kubectl does: lists by the names of what is in them.
func merged(pod *corev1.Pod, patch string) *corev1.Pod {
	text, err := json.Marshal(pod)
	change, wrong := yaml.YAMLToJSON([]byte(patch))
	if err = errors.Join(err, wrong); err == nil && patch != "" {
		text, err = strategicpatch.StrategicMergePatch(text, change, corev1.Pod{})
	}
	made := &corev1.Pod{}
	if err = errors.Join(err, yaml.UnmarshalStrict(text, made)); err != nil {
		panic(fmt.Errorf("%s: %w", patch, err))
	}
	return made
}

func withInit(pod *corev1.Pod, containers ...corev1.Container) *corev1.Pod {
	return changed(pod, func(pod *corev1.Pod) { pod.Spec.InitContainers = containers })
}

func withLabel(pod *corev1.Pod, label, value string) *corev1.Pod {
	return changed(pod, func(pod *corev1.Pod) { pod.Labels = map[string]string{label: value} })
}

func container(name string, texts ...string) corev1.Container {
	return corev1.Container{Name: name, Image: "localhost/none", VolumeMounts: mounts(texts...)}
}

func sidecar(name string, texts ...string) corev1.Container {
	c := container(name, texts...)
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

// belowCases are pods that mount something below a native volume. The plugin makes a directory for it, and refuses that where
// files are: such a pod stays native where the policy can tell, as a live one would never start.
func belowCases() []labelCase {
	b := func(texts ...string) *corev1.Pod { // the Secret a shows the file b/c
		return mounting([]corev1.Volume{ofSecret("a"), ofConfigMap("d"), empty("e")}, texts...)
	}
	toA, onlyD, both := map[string]string{"a": "refvol-a"}, map[string]string{"d": "refvol-d"}, map[string]string{"a": "refvol-a", "d": "refvol-d"}
	items := ofProjectedItems(1, 1)
	first := items.Projected.Sources[1].Secret.Items[0].Path
	token := corev1.Volume{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
	}}}
	return []labelCase{
		{name: "a mount below", pod: b("a:/a", "e:/a/tls"), moves: toA},
		{name: "the token below", pod: mounting([]corev1.Volume{ofSecret("a"), token}, "a:/var/run/secrets", "t:/var/run/secrets/kubernetes.io/serviceaccount"), moves: toA},
		{name: "a mount below a path that begins alike", pod: b("a:/a", "e:/a/bc", "e:/ab", "e:/a-b/c"), moves: toA},
		{name: "a mount below a mount", pod: b("a:/a", "d:/a/x", "e:/a/x/y"), moves: both},
		{name: "a mount below a volume of whole objects", pod: b("d:/a", "e:/a/b/c"), moves: onlyD},

		{name: "a mount below a directory of files", pod: b("a:/a", "d:/d", "e:/a/b/tls"), moves: onlyD},
		{name: "a mount at a directory of files", pod: b("a:/a", "d:/d", "e:/a/b"), moves: onlyD},
		{name: "a mount at a file", pod: b("a:/a", "d:/d", "e:/a/b/c"), moves: onlyD},
		{name: "a mount below a directory of files, with slashes", pod: b("a:/a/", "d:/d", "e:/a/b/tls/"), moves: onlyD},
		{name: "a mount below a directory of files in an init container", pod: withInit(b("a:/a", "d:/d"), container("i", "e:/x/b/tls", "a:/x")), moves: onlyD},
		{name: "a mount at a file of a projected volume", pod: mounting([]corev1.Volume{items, ofConfigMap("d"), empty("e")}, "a:/a", "d:/d", "e:/a/"+first), moves: onlyD},
		{name: "8192 items, and a mount below", pod: mounting([]corev1.Volume{ofItems(mostItems), empty("e")}, "a:/a", "e:/a/tls"), moves: toA},

		{name: "a mount below a subPath", pod: changed(b("a:/a", "d:/d"), func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, container("s", "a:/x:b", "e:/x/tls"))
		}), moves: onlyD},
		{name: "a mount below a subPathExpr", pod: merged(b("a:/a", "d:/d", "e:/x/tls"), `spec: {containers: [
			{name: c, env: [{name: A, value: b}], volumeMounts: [{name: a, mountPath: /x, subPathExpr: $(A)}]}]}`), moves: onlyD},
		{name: "20 containers with 100 volumes, and mounts below", pod: crossedBelow(20, 100), moves: crossedMoves(100)},
	}
}

func crossedBelow(containers, volumes int) *corev1.Pod {
	return changed(crossed(containers, volumes), func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, empty("e"))
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			c.VolumeMounts = append(c.VolumeMounts, mounts(fmt.Sprintf("e:%s/tls", strings.TrimSuffix(c.VolumeMounts[i].MountPath, "/")))...)
		}
	})
}
