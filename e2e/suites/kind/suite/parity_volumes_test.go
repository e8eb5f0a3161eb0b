package suite

import (
	"cmp"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// source describes an object of the kind as a source of a projected volume. Without
// items, every key counts.
func source(kind, name string, items ...corev1.KeyToPath) corev1.VolumeProjection {
	ref := corev1.LocalObjectReference{Name: name}
	if kind == kindSecret {
		return corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: ref, Items: items}}
	}
	return corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref, Items: items}}
}

// optional makes the source do without what is missing.
func optional(s corev1.VolumeProjection) corev1.VolumeProjection {
	if s.Secret != nil {
		s.Secret.Optional = new(true)
	} else {
		s.ConfigMap.Optional = new(true)
	}
	return s
}

// item maps a key to a path, with the volume's mode.
func item(key, path string) corev1.KeyToPath { return corev1.KeyToPath{Key: key, Path: path} }

// moded maps a key to a path with a mode of its own.
func moded(key, path string, mode int32) corev1.KeyToPath {
	return corev1.KeyToPath{Key: key, Path: path, Mode: &mode}
}

// ofUser maps a key to a path with an owner of its own, which Kubernetes 1.37 has.
func ofUser(key, path string, user int64) corev1.KeyToPath {
	return corev1.KeyToPath{Key: key, Path: path, User: &user}
}

// hasUsers reports whether the API server keeps the owners of files: without the feature gate
// AtomicWriteVolumeUserFields it drops them.
func (n *namespace) hasUsers() bool {
	n.t.Helper()
	p := newPod("users", view{sources: []corev1.VolumeProjection{source(kindSecret, "any", ofUser("k", "p", 1))}}.native("users"))
	got := must.Get(n.client.CoreV1().Pods(n.name).Create(n.t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))(n.t)
	return got.Spec.Volumes[0].Secret.Items[0].User != nil
}

// view is what a volume shows, of whichever maker it is.
type view struct {
	// sources has one entry for a volume of a single object, unless projected is set.
	sources     []corev1.VolumeProjection
	projected   bool
	defaultMode *int32
	// defaultUser has no attribute of its own: every source must have items.
	defaultUser *int64
}

// native returns the kubelet's own volume with this view.
func (v view) native(name string) corev1.Volume {
	volume := corev1.Volume{Name: name}
	s := v.sources[0]
	switch {
	case v.projected:
		volume.Projected = &corev1.ProjectedVolumeSource{Sources: v.sources, DefaultMode: v.defaultMode, DefaultUser: v.defaultUser}
	case s.Secret != nil:
		volume.Secret = &corev1.SecretVolumeSource{
			SecretName: s.Secret.Name, Items: s.Secret.Items, Optional: s.Secret.Optional, DefaultMode: v.defaultMode, DefaultUser: v.defaultUser,
		}
	default:
		volume.ConfigMap = &corev1.ConfigMapVolumeSource{
			LocalObjectReference: s.ConfigMap.LocalObjectReference,
			Items:                s.ConfigMap.Items, Optional: s.ConfigMap.Optional, DefaultMode: v.defaultMode, DefaultUser: v.defaultUser,
		}
	}
	return volume
}

// refvol returns the driver's volume with this view. The sources of a projected volume are the attribute as they are.
func (v view) refvol(t *testing.T, name string) corev1.Volume {
	t.Helper()
	var sources []corev1.VolumeProjection
	for _, s := range v.sources {
		s = *s.DeepCopy()
		var items []corev1.KeyToPath
		if s.Secret != nil {
			items = s.Secret.Items
		} else {
			items = s.ConfigMap.Items
		}
		for i := range items {
			items[i].User = cmp.Or(items[i].User, v.defaultUser)
		}
		sources = append(sources, s)
	}
	a := attributes{"sources": toJSON(t, sources)}
	if v.defaultMode != nil {
		a["defaultMode"] = fmt.Sprintf("%04o", *v.defaultMode)
	}
	return refvol(name, a)
}

func toJSON(t *testing.T, value any) string {
	t.Helper()
	return string(must.Get(json.Marshal(value))(t))
}
