package suite

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// parts are those that both kinds of source have.
func parts(s corev1.VolumeProjection) (kind, name string, items []corev1.KeyToPath, isOptional **bool) {
	if s.Secret != nil {
		return "secret", s.Secret.Name, s.Secret.Items, &s.Secret.Optional
	}
	return "configMap", s.ConfigMap.Name, s.ConfigMap.Items, &s.ConfigMap.Optional
}

// optional makes the source do without what is missing.
func optional(s corev1.VolumeProjection) corev1.VolumeProjection {
	_, _, _, isOptional := parts(s)
	*isOptional = new(true)
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
	got, err := n.client.CoreV1().Pods(n.name).Create(n.t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		n.t.Fatal(err)
	}
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

// refvol returns the driver's volume with this view. The sources of a projected
// volume are the attribute as they are.
func (v view) refvol(t *testing.T, name string) corev1.Volume {
	t.Helper()
	a := attributes{}
	sources := slices.Clone(v.sources)
	for i := range sources {
		sources[i] = *sources[i].DeepCopy()
		_, _, items, _ := parts(sources[i])
		for j := range items {
			items[j].User = cmp.Or(items[j].User, v.defaultUser)
		}
	}
	if v.projected {
		a["sources"] = toJSON(t, sources)
	} else {
		kind, name, items, isOptional := parts(sources[0])
		a[kind] = name
		if items != nil {
			a["items"] = toJSON(t, items)
		}
		if *isOptional != nil {
			a["optional"] = fmt.Sprint(**isOptional)
		}
	}
	if v.defaultMode != nil {
		a["defaultMode"] = fmt.Sprintf("%04o", *v.defaultMode)
	}
	return refvol(name, a)
}

func toJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
