package manifests

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// What the plugin publishes at most, with its defaults (docs/limits.md).
const (
	mostPodVolumes = volume.MaxPodVolumes
	mostPodObjects = volume.MaxPodObjects
	mostPodItems   = volume.MaxPodItems
	mostObjects    = 256
	mostItems      = 8192
)

// limitCases are pods at the limits that the policy can count, which become live, and pods beyond them, which stay native:
// a live one would never start.
func limitCases() []labelCase {
	own := showing("own", attributes{"configMap": "app"})
	with := func(volumes int, more ...corev1.Volume) *corev1.Pod {
		return changed(crossed(1, volumes), func(pod *corev1.Pod) { pod.Spec.Volumes = append(pod.Spec.Volumes, more...) })
	}
	native := func(v corev1.Volume) *corev1.Pod { // beside a volume that is moved
		return mounting([]corev1.Volume{v, ofConfigMap("b")}, "a:/a", "b:/b")
	}
	onlyB, both := map[string]string{"b": "refvol-b"}, map[string]string{"a": "refvol-a", "b": "refvol-b"}
	return []labelCase{
		{name: "128 volumes", pod: with(mostPodVolumes), moves: crossedMoves(mostPodVolumes)},
		{name: "129 volumes", pod: with(mostPodVolumes + 1)},
		{name: "127 volumes, and one of the author's own", pod: with(mostPodVolumes-1, own), moves: crossedMoves(mostPodVolumes - 1)},
		{name: "128 volumes, and one of the author's own", pod: with(mostPodVolumes, own)},
		{name: "128 volumes, and one that is not mounted", pod: with(mostPodVolumes, ofConfigMap("a")), moves: crossedMoves(mostPodVolumes)},
		{name: "128 volumes, and one of another driver", pod: with(mostPodVolumes, foreign(showing("foreign", attributes{}))), moves: crossedMoves(mostPodVolumes)},

		{name: "256 sources", pod: native(ofSources(objects(mostObjects)...)), moves: both},
		{name: "257 sources", pod: native(ofSources(objects(mostObjects + 1)...)), moves: onlyB},
		{name: "257 sources of both kinds", pod: native(ofSources(append(objects(mostObjects), secretSource("o0"))...)), moves: onlyB},

		{name: "8193 items of a ConfigMap", pod: native(ofItems(mostItems + 1)), moves: onlyB},
		{name: "8193 items of a Secret", pod: native(ofSecretItems(mostItems + 1)), moves: onlyB},
		{name: "8192 items of a projected volume", pod: native(ofProjectedItems(mostItems/2, mostItems/2)), moves: both},
		{name: "8193 items of a projected volume", pod: native(ofProjectedItems(mostItems/2, mostItems/2+1)), moves: onlyB},
	}
}

// podLimitCases are pods at the limits of what all volumes of a pod may name together, and pods beyond them.
func podLimitCases() []labelCase {
	// unmounted adds volumes that no container mounts.
	unmounted := func(pod *corev1.Pod, more ...corev1.Volume) *corev1.Pod {
		return changed(pod, func(pod *corev1.Pod) { pod.Spec.Volumes = append(pod.Spec.Volumes, more...) })
	}
	// The pod of four full volumes as an earlier turn of the policy leaves it, and a container that is injected afterwards.
	again := alike(4, ofSources(objects(mostObjects)...))
	for i := range 4 {
		live := showing(fmt.Sprintf("refvol-v%d", i), attributes{"volume": fmt.Sprintf("v%d", i)})
		again.Spec.Volumes = append(again.Spec.Volumes, live)
	}
	again = unmounted(again, ofConfigMap("b"))
	again.Spec.Containers = append(again.Spec.Containers, container("injected", "b:/b"))

	const each = mostPodItems / mostPodVolumes // items and sources of each of 128 volumes
	full := ofSources(objects(mostObjects)...)
	return []labelCase{
		{name: "1024 sources in 4 volumes", pod: alike(4, full), moves: crossedMoves(4)},
		{name: "1025 sources in 5 volumes", pod: alike(4, full, ofConfigMap("b"))},
		{name: "1024 sources, and a volume that is not mounted", pod: unmounted(alike(4, full), ofConfigMap("b")), moves: crossedMoves(4)},
		{
			name: "1024 sources, of which the author's own volume shows one", pod: unmounted(alike(3, full, ofSources(objects(mostObjects-1)...)),
				ofConfigMap("b"), showing("own", attributes{"volume": "b"})),
			moves: map[string]string{"v0": "refvol-v0", "v1": "refvol-v1", "v2": "refvol-v2", "a": "refvol-a"},
		},
		{name: "1025 sources, of which the author's own volume shows one", pod: unmounted(alike(4, full),
			ofConfigMap("b"), showing("own", attributes{"volume": "b"}))},
		{name: "1025 sources, of which an earlier turn has made all but one live", pod: again, moves: crossedMoves(4)},

		{name: "16385 items and sources in 128 volumes", pod: alike(mostPodVolumes-1, ofItems(each-1), ofSecretItems(each))},
		{name: "16384 items and sources in 16 volumes", pod: alike(16, ofSecretItems(mostPodItems/16-1)), moves: crossedMoves(16)},
		{name: "16385 items and sources in 16 volumes", pod: alike(15, ofSecretItems(mostPodItems/16-1), ofProjectedItems(1, mostPodItems/16-2))},
		{name: "16384 items and sources, 1024 objects and 128 volumes", pod: atAllLimits(), moves: crossedMoves(mostPodVolumes)},
	}
}

// alike is a pod of equal volumes v0, v1, and so on, and of more volumes that are mounted too.
func alike(volumes int, one corev1.Volume, more ...corev1.Volume) *corev1.Pod {
	return changed(crossed(1, volumes), func(pod *corev1.Pod) {
		for i := range pod.Spec.Volumes {
			pod.Spec.Volumes[i].VolumeSource = *one.VolumeSource.DeepCopy()
		}
		for _, v := range more {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v)
			pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, mounts(v.Name+":/more/"+v.Name)...)
		}
	})
}

// atAllLimits is a pod that reaches all limits that the policy can count.
func atAllLimits() *corev1.Pod {
	const sources = mostPodObjects / mostPodVolumes // of each volume
	var all []corev1.VolumeProjection
	for i := range sources {
		all = append(all, secretSource(fmt.Sprintf("o%d", i), items(i*mostPodItems, mostPodItems/mostPodObjects-1)...))
	}
	return alike(mostPodVolumes, ofSources(all...))
}

// objects are sources of optional ConfigMaps o0, o1, and so on.
func objects(n int) (sources []corev1.VolumeProjection) {
	for i := range n {
		p := corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("o%d", i)}, Optional: new(true)}
		sources = append(sources, corev1.VolumeProjection{ConfigMap: &p})
	}
	return sources
}

func secretSource(name string, items ...corev1.KeyToPath) corev1.VolumeProjection {
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items}}
}

func ofSources(sources ...corev1.VolumeProjection) corev1.Volume {
	return corev1.Volume{Name: "a", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
}

// items show one key at so many paths, from a first one on.
func items(first, n int) (all []corev1.KeyToPath) {
	for i := range n {
		all = append(all, corev1.KeyToPath{Key: "k", Path: fmt.Sprint(first + i)})
	}
	return all
}

func ofItems(n int) corev1.Volume {
	v := ofConfigMap("a")
	v.ConfigMap.Items = items(0, n)
	return v
}

func ofSecretItems(n int) corev1.Volume {
	v := ofSecret("a")
	v.Secret.Items = items(0, n)
	return v
}

func ofProjectedItems(configMap, secret int) corev1.Volume {
	of := objects(1)
	of[0].ConfigMap.Items = items(0, configMap)
	return ofSources(append(of, secretSource("db", items(configMap, secret)...))...)
}
