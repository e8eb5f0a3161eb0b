package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// liveReportKind is the kind of a LiveReport. Its apiVersion is status.APIVersion.
	liveReportKind = "LiveReport"
	// MaxVolumeSize is the default of the plugin's --max-volume-size.
	MaxVolumeSize = 32 << 20
	// podFiles and podObjects are a pod's share of the default --max-total-size and --max-cached-size.
	podFiles, podObjects = 64 << 20, 32 << 20
	pageSize, inodeSize  = 4 << 10, 1 << 10
	keySize, objectSize  = 96, 512
)

// LiveReport says what a live label would change in the pods of a namespace, once they are replaced.
type LiveReport struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace"`
	Pods       []LivePod `json:"pods"`
}

// LivePod is a pod, or several pods of one owner with the same changes.
type LivePod struct {
	Name string `json:"name"`
	// Owner is the pods' controller, or "". Replicas is the number of pods.
	Owner    string `json:"owner"`
	Replicas int    `json:"replicas"`
	// Live are the native volumes that a volume of the driver would show. Native are those that stay.
	Live   []string `json:"live"`
	Native []Native `json:"native"`
	// Problems say why the pod could not start.
	Problems []string `json:"problems"`
	// Unread are the objects that the caller may not read, so that their sizes are not known.
	Unread []string `json:"unread"`
}

// Label returns what a live label would change in the pods of a namespace. maxVolume is the plugin's --max-volume-size in bytes. The error
// is about a cluster that does not answer.
func (c *Checker) Label(ctx context.Context, namespace string, maxVolume int64, pods []corev1.Pod) (*LiveReport, error) {
	if c.opts.Cluster == nil {
		return nil, errors.New("check: a cluster is required")
	}
	report := &LiveReport{status.APIVersion, liveReportKind, namespace, []LivePod{}}
	alike := map[string]int{}
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		one := LivePod{Name: p.Name, Replicas: 1, Live: []string{}, Native: []Native{}, Problems: []string{}, Unread: []string{}}
		live, native := label(p, c.opts.Driver)
		one.Live, one.Native = append(one.Live, slices.Sorted(maps.Keys(live))...), append(one.Native, native...)
		if err := c.checkLivePod(ctx, p, &one, live, maxVolume); err != nil {
			return nil, err
		}
		if owner := metav1.GetControllerOf(p); owner != nil {
			one.Owner = owner.Kind + "/" + owner.Name
			key := fmt.Sprint(one.Owner, one.Live, one.Native, one.Problems)
			if at, ok := alike[key]; ok {
				report.Pods[at].Replicas++
				continue
			}
			alike[key] = len(report.Pods)
		}
		report.Pods = append(report.Pods, one)
	}
	return report, nil
}

// usage is the memory of a pod's live volumes.
type usage struct {
	files   int64
	objects sets.Set[volume.Ref]
}

// checkLivePod adds what the plugin would refuse of a pod with live volumes. live has their names, by those of the native volumes.
func (c *Checker) checkLivePod(ctx context.Context, p *corev1.Pod, to *LivePod, live map[string]string, maxVolume int64) error {
	changed := withLive(&p.Spec, c.opts.Driver, live)
	used := usage{objects: sets.New[volume.Ref]()}
	add := func(format string, args ...any) { to.Problems = append(to.Problems, fmt.Sprintf(format, args...)) }
	for _, name := range to.Live {
		spec, err := c.resolveLive(ctx, p, changed, name, live[name])
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

// cached returns the memory of the objects in bytes, and records those that could not be read.
func (c *Checker) cached(used *usage, to *LivePod) (bytes int64) {
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
func (c *Checker) resolveLive(ctx context.Context, p *corev1.Pod, changed *corev1.PodSpec, name, by string) (*volume.Spec, error) {
	at := field.NewPath("spec")
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

// CannotStart returns the number of pods that could not start.
func (r *LiveReport) CannotStart() (n int) {
	for i := range r.Pods {
		if len(r.Pods[i].Problems) > 0 {
			n += r.Pods[i].Replicas
		}
	}
	return n
}

// WriteText writes the report for people.
func (r *LiveReport) WriteText(w io.Writer) error {
	var b strings.Builder
	lines := [][]string{{"POD", "OWNER", "PODS", "LIVE"}}
	all, changed := 0, 0
	for i := range r.Pods {
		p := &r.Pods[i]
		if all += p.Replicas; len(p.Live) > 0 {
			changed += p.Replicas
			lines = append(lines, []string{p.Name, cmp.Or(p.Owner, "-"), fmt.Sprint(p.Replicas), strings.Join(p.Live, ",")})
		}
	}
	if len(lines) > 1 {
		if err := status.WriteTable(&b, append(lines, nil)); err != nil {
			return err
		}
	}
	for i := range r.Pods {
		for _, v := range r.Pods[i].Native {
			line(&b, "stays native: volume %s of pod %s: %s", v.Volume, r.Pods[i].Name, v.Reason)
		}
	}
	for i := range r.Pods {
		for _, object := range r.Pods[i].Unread {
			line(&b, "size not known: pod %s: you may not get %s", r.Pods[i].Name, object)
		}
	}
	for i := range r.Pods {
		for _, problem := range r.Pods[i].Problems {
			line(&b, "could not start: pod %s: %s", r.Pods[i].Name, problem)
		}
	}
	line(&b, "%s in namespace %s: %d would change, %d could not start", count(all, "pod"), r.Namespace, changed, r.CannotStart())
	_, err := io.WriteString(w, b.String())
	return err
}
