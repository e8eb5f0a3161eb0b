// Package pod says what a pod's spec says: which ConfigMaps and Secrets it references, what a container has in
// its environment, what one of its own volumes shows, and what a spec of pkg/volume means with all of that.
//
// It owns the list of fields in which a reference can stand, and the read of a pod (reader.go); all else is
// pure. It must not know what becomes of the answers.
package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// Reference is one place in a pod's spec that names an object of the pod's namespace.
type Reference struct {
	Kind volume.Kind
	Name string
	// Keys are those that the place names; none means the whole object.
	Keys []string
	// Optional says that the pod starts without the object and its keys. An image pull secret is optional
	// too: the kubelet then pulls without it.
	Optional bool
	// Env says that the place is a container's environment. That sees a ConfigMap's data, and not its
	// binaryData.
	Env bool
	// Field is the path of the field that holds the name.
	Field string
}

// VisitObjectRefs calls visit for each place of a pod's spec that references an object, in the
// order of init, regular and ephemeral containers and volumes after the pull secrets.
// An object that is named several times is visited several times, an empty name never.
// at is the path of the spec, as in field.NewPath("spec").
func VisitObjectRefs(spec *corev1.PodSpec, at *field.Path, visit func(Reference)) {
	v := visitor{visit}
	for i, secret := range spec.ImagePullSecrets {
		v.add(Reference{Kind: volume.Secret, Name: secret.Name, Optional: true}, at.Child("imagePullSecrets").Index(i).Child("name"))
	}
	for _, c := range Containers(spec, at) {
		v.envFrom(c.At.Child("envFrom"), c.EnvFrom)
		v.env(c.At.Child("env"), c.Env)
	}
	for i := range spec.Volumes {
		v.volume(at.Child("volumes").Index(i), &spec.Volumes[i].VolumeSource)
	}
}

// Refs returns the objects that a pod's spec references, each once, in the order of
// VisitObjectRefs. namespace is the pod's.
func Refs(spec *corev1.PodSpec, namespace string) []volume.Ref {
	seen := map[volume.Ref]bool{}
	var refs []volume.Ref
	VisitObjectRefs(spec, field.NewPath("spec"), func(r Reference) {
		ref := volume.Ref{Kind: r.Kind, Namespace: namespace, Name: r.Name}
		if !seen[ref] {
			seen[ref] = true
			refs = append(refs, ref)
		}
	})
	return refs
}

// Container is what the three sorts of containers have in common, with its path.
type Container struct {
	*corev1.Container
	At *field.Path
}

// Containers returns all containers of a pod's spec: init, regular, ephemeral.
func Containers(spec *corev1.PodSpec, at *field.Path) []Container {
	all := make([]Container, 0, len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers))
	for i := range spec.InitContainers {
		all = append(all, Container{&spec.InitContainers[i], at.Child("initContainers").Index(i)})
	}
	for i := range spec.Containers {
		all = append(all, Container{&spec.Containers[i], at.Child("containers").Index(i)})
	}
	for i := range spec.EphemeralContainers {
		// The API keeps the two types convertible.
		c := (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
		all = append(all, Container{c, at.Child("ephemeralContainers").Index(i)})
	}
	return all
}

// visitor passes on the references that have a name.
type visitor struct{ visit func(Reference) }

func (v visitor) add(r Reference, at *field.Path) {
	if r.Name != "" {
		r.Field = at.String()
		v.visit(r)
	}
}

func (v visitor) envFrom(at *field.Path, sources []corev1.EnvFromSource) {
	for i := range sources {
		at := at.Index(i)
		if r := sources[i].ConfigMapRef; r != nil {
			v.add(Reference{Kind: volume.ConfigMap, Name: r.Name, Optional: isTrue(r.Optional), Env: true}, at.Child("configMapRef", "name"))
		}
		if r := sources[i].SecretRef; r != nil {
			v.add(Reference{Kind: volume.Secret, Name: r.Name, Optional: isTrue(r.Optional), Env: true}, at.Child("secretRef", "name"))
		}
	}
}

func (v visitor) env(at *field.Path, variables []corev1.EnvVar) {
	for i := range variables {
		from, at := variables[i].ValueFrom, at.Index(i).Child("valueFrom")
		if from == nil {
			continue
		}
		if r := from.ConfigMapKeyRef; r != nil {
			v.add(Reference{Kind: volume.ConfigMap, Name: r.Name, Keys: []string{r.Key}, Optional: isTrue(r.Optional), Env: true}, at.Child("configMapKeyRef", "name"))
		}
		if r := from.SecretKeyRef; r != nil {
			v.add(Reference{Kind: volume.Secret, Name: r.Name, Keys: []string{r.Key}, Optional: isTrue(r.Optional), Env: true}, at.Child("secretKeyRef", "name"))
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
