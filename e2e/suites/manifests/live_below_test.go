package manifests

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// belowCases are pods that mount something below a native volume. The plugin makes a directory for it, and refuses that where
// files are: such a pod stays native where the policy can tell, as a live one would never start.
func belowCases() []liveCase {
	b := func(texts ...string) *corev1.Pod { // the Secret a shows the file b/c
		return mounting([]corev1.Volume{ofSecret("a"), ofConfigMap("d"), empty("e")}, texts...)
	}
	toA, onlyD, both := map[string]string{"a": "refvol-a"}, map[string]string{"d": "refvol-d"}, map[string]string{"a": "refvol-a", "d": "refvol-d"}
	items := ofProjectedItems(1, 1)
	first := items.Projected.Sources[1].Secret.Items[0].Path
	token := corev1.Volume{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
	}}}
	return []liveCase{
		{name: "a mount below", pod: b("a:/a", "e:/a/tls"), moves: toA},
		{name: "a mount three below", pod: b("a:/a", "e:/a/x/y/z"), moves: toA},
		{name: "the token below", pod: mounting([]corev1.Volume{ofSecret("a"), token}, "a:/var/run/secrets", "t:/var/run/secrets/kubernetes.io/serviceaccount"), moves: toA},
		{name: "a mount below a path that begins alike", pod: b("a:/a", "e:/a/bc", "e:/ab", "e:/a-b/c"), moves: toA},
		{name: "a mount below a mount", pod: b("a:/a", "d:/a/x", "e:/a/x/y"), moves: both},
		{name: "a mount below a volume of whole objects", pod: b("d:/a", "e:/a/b/c"), moves: onlyD},

		{name: "a mount below a directory of files", pod: b("a:/a", "d:/d", "e:/a/b/tls"), moves: onlyD},
		{name: "a mount at a directory of files", pod: b("a:/a", "d:/d", "e:/a/b"), moves: onlyD},
		{name: "a mount at a file", pod: b("a:/a", "d:/d", "e:/a/b/c"), moves: onlyD},
		{name: "a mount below a directory of files, with slashes", pod: b("a:/a/", "d:/d", "e:/a/b/tls/"), moves: onlyD},
		{name: "a mount below a directory of files in an init container", pod: changed(b("a:/a", "d:/d"), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container("i", "e:/x/b/tls", "a:/x")}
		}), moves: onlyD},
		{name: "a mount at a file of a projected volume", pod: mounting([]corev1.Volume{items, ofConfigMap("d"), empty("e")}, "a:/a", "d:/d", "e:/a/"+first), moves: onlyD},
		{name: "8192 items, and a mount below", pod: mounting([]corev1.Volume{ofItems(mostItems), empty("e")}, "a:/a", "e:/a/tls"), moves: toA},

		{name: "a mount below a subPath", pod: changed(b("a:/a", "d:/d"), func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, container("s", "a:/x:b", "e:/x/tls"))
		}), moves: onlyD},
		{name: "a mount below a subPathExpr", pod: changed(b("a:/a", "d:/d", "e:/x/tls"), func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "a", MountPath: "/x", SubPathExpr: "$(A)"})
		}), moves: onlyD},
		{name: "20 containers with 100 volumes, and mounts below", pod: crossedBelow(20, 100), moves: crossedMoves(100)},
	}
}

// crossedBelow is crossed with a mount below one of the volumes in each container.
func crossedBelow(containers, volumes int) *corev1.Pod {
	return changed(crossed(containers, volumes), func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, empty("e"))
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			c.VolumeMounts = append(c.VolumeMounts, mounts(fmt.Sprintf("e:%s/tls", strings.TrimSuffix(c.VolumeMounts[i].MountPath, "/")))...)
		}
	})
}
