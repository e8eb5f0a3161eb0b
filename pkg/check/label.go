package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// liveLabel enables live volumes for a namespace or a pod. The value "false", also as an annotation, disables them.
	liveLabel = "refvol.dev/live"
	// livePrefix begins the names of the live volumes that the policy makes.
	livePrefix = "refvol-"
	// The limits of a volume in deploy/components/live: sources and items.
	mostSources, mostItems = 256, 8192
)

// Native is a volume that remains the kubelet's own in spite of a live label.
type Native struct {
	Volume string `json:"volume"`
	Reason string `json:"reason"`
}

// label returns what the policy of deploy/components/live does with a pod. live has the native volumes that a volume of the driver
// would show, with the name of that volume. native has those that stay, with the reason. Volumes that cannot be live, such as one
// with a token, are in neither.
func label(p *corev1.Pod, driver string) (live map[string]string, native []Native) {
	why := optOutReason(p)
	made := madeLive(&p.Spec, driver)
	var moved, fresh []string
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		items, sources, ok := projections(v)
		if !ok {
			continue
		}
		whole, part := mounted(&p.Spec, v.Name)
		switch {
		case made[v.Name] != "" && !whole: // an earlier run of the policy has moved its mounts
		case why != "":
			native = append(native, Native{v.Name, why})
		case !whole && !part:
		case !whole:
			native = append(native, Native{v.Name, "it is mounted by subPath only"})
		case isCrossed(&p.Spec, v.Name, items):
			native = append(native, Native{v.Name, "a mount lies below its files"})
		case sources > mostSources:
			native = append(native, Native{v.Name, "it has more than 256 sources"})
		case len(items) > mostItems:
			native = append(native, Native{v.Name, "it has more than 8,192 items"})
		case made[v.Name] != "":
			moved = append(moved, v.Name)
		default:
			fresh = append(fresh, v.Name)
		}
	}
	if over := overLimits(&p.Spec, driver, fresh); over != "" {
		for _, name := range fresh {
			native = append(native, Native{name, over})
		}
		fresh = nil
	}
	live = map[string]string{}
	for _, name := range moved {
		live[name] = made[name]
	}
	for _, name := range fresh {
		if live[name] = liveName(&p.Spec, name); live[name] == "" {
			delete(live, name)
			native = append(native, Native{name, "both names that its live volume may have are taken"})
		}
	}
	return live, native
}

// overLimits says which limit of a pod its volumes of the driver would exceed if the fresh native volumes became live, or returns "". Like
// the policy, which can't read YAML, it counts what a volume of the driver shows only by its attribute `volume`, and sources for objects.
func overLimits(spec *corev1.PodSpec, driver string, fresh []string) string {
	shown := slices.Clone(fresh)
	objects, listed := map[string]int{}, map[string]int{} // by the native volume
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.CSI != nil && v.CSI.Driver == driver {
			shown = append(shown, v.CSI.VolumeAttributes["volume"])
		}
		items, sources, _ := projections(v)
		objects[v.Name], listed[v.Name] = sources, sources+len(items)
	}
	sum := func(of map[string]int) (n int) {
		for _, name := range shown {
			n += of[name]
		}
		return n
	}
	switch {
	case len(shown) > volume.MaxPodVolumes:
		return "the pod would have more than 128 volumes of the driver"
	case sum(objects) > volume.MaxPodObjects:
		return "the live volumes of the pod would have more than 1,024 sources"
	case sum(listed) > volume.MaxPodItems:
		return "the live volumes of the pod would have more than 16,384 sources and items"
	}
	return ""
}

// madeLive returns the names of the volumes of the driver that an earlier run of the policy has added, by the native volume that they show.
func madeLive(spec *corev1.PodSpec, driver string) map[string]string {
	made := map[string]string{}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.CSI == nil || v.CSI.Driver != driver {
			continue
		}
		shown, ok := v.CSI.VolumeAttributes["volume"]
		for name := range v.CSI.VolumeAttributes {
			ok = ok && (name == "volume" || name == "spread")
		}
		if ok && strings.HasPrefix(v.Name, livePrefix) && v.CSI.ReadOnly != nil && *v.CSI.ReadOnly && made[shown] == "" {
			made[shown] = v.Name
		}
	}
	return made
}

// liveName returns the first name for the live volume of a native one that is free, "" if none is.
func liveName(spec *corev1.PodSpec, native string) string {
	at := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == native })
	for _, name := range []string{livePrefix + native, fmt.Sprintf("%s-%s-%d", livePrefix, native[:min(len(native), 50)], at)} {
		isTaken := slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
		if len(name) <= validation.DNS1123LabelMaxLength && !isTaken {
			return name
		}
	}
	return ""
}

// optOutReason says why the policy does not change a pod, or returns "".
func optOutReason(p *corev1.Pod) string {
	switch {
	case p.Labels[liveLabel] == "false" || p.Annotations[liveLabel] == "false":
		return "the pod is left out by " + liveLabel + ": \"false\""
	case p.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return "the pod is static"
	case p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows, p.Spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows):
		return "the pod is of Windows"
	}
	return ""
}

// projections returns the items of a native volume, the number of its sources, and whether it shows only ConfigMaps and Secrets.
func projections(v *corev1.Volume) (items []corev1.KeyToPath, sources int, ok bool) {
	switch {
	case v.ConfigMap != nil:
		return v.ConfigMap.Items, 1, true
	case v.Secret != nil:
		return v.Secret.Items, 1, true
	case v.Projected == nil:
		return nil, 0, false
	}
	ok = len(v.Projected.Sources) > 0
	for i := range v.Projected.Sources {
		switch s := &v.Projected.Sources[i]; {
		case s.ConfigMap != nil:
			items = append(items, s.ConfigMap.Items...)
		case s.Secret != nil:
			items = append(items, s.Secret.Items...)
		default:
			ok = false
		}
	}
	return items, len(v.Projected.Sources), ok
}

// containersOf returns the containers whose mounts the policy changes.
func containersOf(spec *corev1.PodSpec) []corev1.Container {
	return slices.Concat(spec.InitContainers, spec.Containers)
}

// mounted reports whether a container mounts a volume as a whole, and whether one mounts a part of it.
func mounted(spec *corev1.PodSpec, name string) (whole, part bool) {
	containers := containersOf(spec)
	for i := range containers {
		for _, m := range containers[i].VolumeMounts {
			isPart := cmp.Or(m.SubPath, m.SubPathExpr) != ""
			whole, part = whole || m.Name == name && !isPart, part || m.Name == name && isPart
		}
	}
	return whole, part
}

// isCrossed reports whether a mount is at or below a directory of a volume's files, as far as the items show that, or below a part of it.
func isCrossed(spec *corev1.PodSpec, name string, items []corev1.KeyToPath) bool {
	containers := containersOf(spec)
	for i := range containers {
		mounts := containers[i].VolumeMounts
		for _, m := range mounts {
			root := strings.TrimSuffix(m.MountPath, "/") + "/"
			for _, n := range mounts {
				below, isBelow := strings.CutPrefix(n.MountPath+"/", root)
				if m.Name != name || n.MountPath == m.MountPath || !isBelow {
					continue
				}
				first, _, _ := strings.Cut(below, "/")
				if cmp.Or(m.SubPath, m.SubPathExpr) != "" ||
					slices.ContainsFunc(items, func(k corev1.KeyToPath) bool { return strings.HasPrefix(k.Path+"/", first+"/") }) {
					return true
				}
			}
		}
	}
	return false
}

// withLive returns a pod's spec after the policy has changed it. live has the names of the volumes that show the native ones.
func withLive(spec *corev1.PodSpec, driver string, live map[string]string) *corev1.PodSpec {
	changed := spec.DeepCopy()
	for _, native := range slices.Sorted(maps.Keys(live)) {
		name := live[native]
		if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
			continue
		}
		changed.Volumes = append(changed.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: driver, ReadOnly: new(true), VolumeAttributes: map[string]string{"volume": native},
		}}})
	}
	for _, containers := range [][]corev1.Container{changed.InitContainers, changed.Containers} {
		for i := range containers {
			for j := range containers[i].VolumeMounts {
				m := &containers[i].VolumeMounts[j]
				m.Name = cmp.Or(live[m.Name], m.Name)
			}
		}
	}
	return changed
}
