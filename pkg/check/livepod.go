package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// MaxVolumeSize is the default of the plugin's --max-volume-size.
	MaxVolumeSize = 32 << 20
	// podFiles and podObjects are a pod's share of the default --max-total-size and --max-cached-size.
	podFiles, podObjects = 64 << 20, 32 << 20
	pageSize, inodeSize  = 4 << 10, 1 << 10
	keySize, objectSize  = 96, 512
	// mostItems is the limit of a volume's items.
	mostItems = 8192
)

// usage is the memory of a pod's live volumes.
type usage struct {
	files   int64
	objects sets.Set[volume.Ref]
}

// livePod adds which native volumes of a pod the API server made live, and what the plugin would refuse of these.
func (c *Checker) livePod(ctx context.Context, made, created *corev1.Pod, maxVolume int64, to *LabelPod) error {
	live, native := c.moved(&made.Spec, &created.Spec)
	to.Changed, to.Stays = append(to.Changed, slices.Sorted(maps.Keys(live))...), append(to.Stays, native...)
	used := usage{objects: sets.New[volume.Ref]()}
	add := func(format string, args ...any) { to.Problems = append(to.Problems, fmt.Sprintf(format, args...)) }
	for _, name := range to.Changed {
		spec, err := c.resolveLive(ctx, created, name, live[name])
		if asked, ok := errors.AsType[*askError](err); ok {
			return asked.error
		}
		if err != nil {
			add("volume %s: %v", name, err)
		} else if problem := c.measure(&used, spec, maxVolume); problem != "" {
			add("volume %s: %s", name, problem)
		}
	}
	if share := max(podFiles, maxVolume); used.files > share {
		add("the files of its live volumes take %d KiB, more than a pod's share of --max-total-size, by default %d KiB", used.files>>10, share>>10)
	}
	if cached := c.cached(&used, to); cached > podObjects {
		add("the objects of its live volumes take %d KiB, more than a pod's share of --max-cached-size, by default %d KiB", cached>>10, podObjects>>10)
	}
	return nil
}

// place is where a container has a mount.
type place struct{ container, path string }

// moved compares a pod's spec with what the API server made of it. live has the native volumes whose mounts moved to a volume of the driver,
// with the name of that volume. native are those that a container still mounts.
func (c *Checker) moved(made, created *corev1.PodSpec) (live map[string]string, native []string) {
	shown := map[string]string{} // the native volumes, by the volume that shows them
	for i := range created.Volumes {
		if v := &created.Volumes[i]; v.CSI != nil && v.CSI.Driver == c.opts.Driver {
			shown[v.Name] = v.CSI.VolumeAttributes["volume"]
		}
	}
	now := map[place]string{}
	for _, container := range containersOf(created) {
		for _, m := range container.VolumeMounts {
			now[place{container.Name, m.MountPath}] = m.Name
		}
	}
	live, mounted := map[string]string{}, sets.New[string]()
	for _, container := range containersOf(made) {
		for _, m := range container.VolumeMounts {
			mounted.Insert(m.Name)
			if name := now[place{container.Name, m.MountPath}]; shown[name] == m.Name {
				live[m.Name] = name
			}
		}
	}
	for i := range made.Volumes {
		if v := &made.Volumes[i]; isNative(v) && mounted.Has(v.Name) && live[v.Name] == "" {
			native = append(native, v.Name)
		}
	}
	return live, native
}

// isNative reports whether a volume of the kubelet shows only ConfigMaps and Secrets.
func isNative(v *corev1.Volume) bool {
	if v.Projected == nil {
		return v.ConfigMap != nil || v.Secret != nil
	}
	return len(v.Projected.Sources) > 0 && !slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ConfigMap == nil && s.Secret == nil })
}

// cached returns the memory of the objects in bytes, and records those that could not be read.
func (c *Checker) cached(used *usage, to *LabelPod) (bytes int64) {
	for ref := range used.objects {
		object := c.objects[ref]
		if object.Exists == Unknown {
			to.Unread = append(to.Unread, ref.String())
		}
		bytes += objectSize
		for key, size := range object.sizes {
			bytes += int64(len(key)) + size + keySize
		}
	}
	slices.Sort(to.Unread)
	return bytes
}

// askError says that the cluster did not answer.
type askError struct{ error }

// resolveLive returns what a live volume shows. For whole objects it lists each key, so that a mount at one of them is found.
func (c *Checker) resolveLive(ctx context.Context, p *corev1.Pod, name, by string) (*volume.Spec, error) {
	at, changed := field.NewPath("spec"), &p.Spec
	spec, err := volume.Parse(map[string]string{"volume": name}, volume.Pod{Namespace: p.Namespace, Name: p.Name, ServiceAccount: serviceAccount(changed)})
	if err != nil {
		return nil, err
	}
	resolved, _, err := pod.Resolve(spec,
		func(container string) (volume.Env, []string, error) { return pod.Env(changed, p.Namespace, container) },
		func(name string) ([]volume.Source, error) {
			sources, err := pod.VolumeSources(changed, at, p.Namespace, name)
			if err == nil {
				err = c.nameKeys(ctx, sources)
			}
			return sources, err
		},
		func(name string) []pod.Below { return pod.MountsBelow(withToken(changed), at)[name] }, by, nil)
	return resolved, err
}

// nameKeys adds items for all keys to sources that show whole objects.
func (c *Checker) nameKeys(ctx context.Context, sources []volume.Source) error {
	for i := range sources {
		projection := sources[i].Projection
		object, err := cached(c.objects, projection.Ref, func() (Object, error) { return c.opts.Cluster.Lookup(ctx, projection.Ref) })
		if err != nil {
			return &askError{fmt.Errorf("get %s: %w", projection.Ref, err)}
		}
		if keys := object.Data.Union(object.BinaryData); len(projection.Items) == 0 && len(keys) <= mostItems {
			for _, key := range sets.List(keys) {
				projection.Items = append(projection.Items, volume.Item{Key: key, Path: key})
			}
		}
	}
	return nil
}

// measure adds the memory of a volume, and returns a text if the volume exceeds one of its limits.
func (c *Checker) measure(used *usage, spec *volume.Spec, maxVolume int64) string {
	var pages, keys int64
	for i := range spec.Sources {
		projection := spec.Sources[i].Projection
		if projection == nil {
			continue
		}
		used.objects.Insert(projection.Ref)
		object := c.objects[projection.Ref]
		shown := sets.List(sets.KeySet(object.sizes))
		if len(projection.Items) > 0 {
			shown = nil
			for _, item := range projection.Items {
				shown = append(shown, item.Key)
			}
		}
		for _, key := range shown {
			keys++
			pages += (object.sizes[key] + pageSize - 1) / pageSize
		}
	}
	used.files += pages*pageSize + 2*keys*inodeSize // a file and its link
	switch {
	case keys > maxVolume/pageSize:
		return fmt.Sprintf("has %d keys, more than %d (--max-volume-size)", keys, maxVolume/pageSize)
	case pages*pageSize > maxVolume:
		return fmt.Sprintf("its files take %d KiB, more than %d KiB (--max-volume-size)", pages*pageSize>>10, maxVolume>>10)
	}
	return ""
}
