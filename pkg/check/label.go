package check

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	// liveLabel enables live volumes for a namespace or a pod. The value "false", also as an annotation, disables them.
	liveLabel = "refvol.dev/live"
	// The limits in deploy/components/live: volumes of the driver in a pod, sources in a volume, and items in a volume.
	mostVolumes, mostSources, mostItems = 128, 256, 8192
)

// Native is a volume that remains the kubelet's own in spite of a live label.
type Native struct {
	Volume string `json:"volume"`
	Reason string `json:"reason"`
}

// label returns what the policy of deploy/components/live does with a pod: the native volumes that a volume of the driver would show, and
// those that stay, with the reason. Volumes that cannot be live, such as one with a token, are in neither list.
func label(p *corev1.Pod, driver string) (live []string, native []Native) {
	why := optedOut(p)
	driven, shown := 0, map[string]bool{}
	for i := range p.Spec.Volumes {
		if csi := p.Spec.Volumes[i].CSI; csi != nil && csi.Driver == driver {
			driven++
			shown[csi.VolumeAttributes["volume"]] = true
		}
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		items, sources, ok := projections(v)
		if !ok || shown[v.Name] {
			continue
		}
		whole, part := mounted(&p.Spec, v.Name)
		switch {
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
		default:
			live = append(live, v.Name)
		}
	}
	if driven+len(live) > mostVolumes {
		for _, name := range live {
			native = append(native, Native{name, "the pod would have more than 128 volumes of the driver"})
		}
		return nil, native
	}
	return live, native
}

// optedOut says why the policy does not change a pod, or returns "".
func optedOut(p *corev1.Pod) string {
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
	for i := range v.Projected.Sources {
		switch s := &v.Projected.Sources[i]; {
		case s.ConfigMap != nil:
			items = append(items, s.ConfigMap.Items...)
		case s.Secret != nil:
			items = append(items, s.Secret.Items...)
		default:
			return nil, 0, false
		}
	}
	return items, len(v.Projected.Sources), len(v.Projected.Sources) > 0
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

// withLive returns a pod's spec after the policy has changed it, and the names of the volumes that show the native ones.
func withLive(spec *corev1.PodSpec, driver string, live []string) (changed *corev1.PodSpec, by map[string]string) {
	changed, by = spec.DeepCopy(), map[string]string{}
	readOnly := true
	for _, name := range live {
		by[name] = "refvol-" + name
		changed.Volumes = append(changed.Volumes, corev1.Volume{Name: by[name], VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: driver, ReadOnly: &readOnly, VolumeAttributes: map[string]string{"volume": name},
		}}})
	}
	for _, containers := range [][]corev1.Container{changed.InitContainers, changed.Containers} {
		for i := range containers {
			for j := range containers[i].VolumeMounts {
				m := &containers[i].VolumeMounts[j]
				m.Name = cmp.Or(by[m.Name], m.Name)
			}
		}
	}
	return changed, by
}
