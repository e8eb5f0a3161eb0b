// Package pod interprets a pod's spec: which ConfigMaps and Secrets it references, which variables a container has, what one of its own
// volumes shows, and how these complete a volume's spec.
//
// It owns the list of fields that may hold a reference, and the reads of pods (reader.go, reads.go). All else is pure. It must not know
// what the results are used for.
package pod

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// Reference is one field in a pod's spec that names an object of the pod's namespace.
type Reference struct {
	Kind volume.Kind
	Name string
	// Keys are the keys that the field names. If there are none, it names the whole object.
	Keys []string
	// Optional means that the pod starts without the object and its keys. An image pull secret is optional too: the kubelet then pulls
	// without it.
	Optional bool
	// Env means that the reference is in a container's environment, which uses a ConfigMap's data but not its binaryData.
	Env bool
	// Field is the path of the field that holds the name.
	Field string
}

// VisitObjectRefs calls visit for each reference to an object in a pod's spec: first the pull secrets, then the init, regular and ephemeral
// containers, then the volumes. An object that is named several times is visited several times, and an empty name never. at is the path of
// the spec, as in field.NewPath("spec").
func VisitObjectRefs(spec *corev1.PodSpec, at *field.Path, visit func(Reference)) {
	named := func(r Reference) {
		if r.Name != "" {
			visit(r)
		}
	}
	for i, secret := range spec.ImagePullSecrets {
		named(Reference{Kind: volume.Secret, Name: secret.Name, Optional: true, Field: at.Child("imagePullSecrets").Index(i).Child("name").String()})
	}
	for _, c := range Containers(spec, at) {
		env := readEnv(c, "").env
		for _, from := range env.From {
			named(Reference{Kind: from.Ref.Kind, Name: from.Ref.Name, Optional: from.Optional, Env: true, Field: from.Field + ".name"})
		}
		for _, v := range env.Vars {
			if v.Key != nil {
				named(Reference{Kind: v.Key.Ref.Kind, Name: v.Key.Ref.Name, Keys: []string{v.Key.Key}, Optional: v.Key.Optional, Env: true, Field: v.Key.Field + ".name"})
			}
		}
	}
	for i := range spec.Volumes {
		visitVolume(at.Child("volumes").Index(i), &spec.Volumes[i].VolumeSource, named)
	}
}

// visitVolume visits the references of one volume of a pod. References of a claim or its persistent volume are not the pod's.
func visitVolume(at *field.Path, source *corev1.VolumeSource, visit func(Reference)) {
	shown, _ := objectsOf(at, source)
	for i := range shown {
		r := Reference{Kind: shown[i].kind, Name: shown[i].name, Optional: isTrue(shown[i].optional), Field: shown[i].nameAt.String()}
		for _, item := range shown[i].items {
			r.Keys = append(r.Keys, item.Key)
		}
		visit(r)
	}
	if source.AzureFile != nil {
		visit(Reference{Kind: volume.Secret, Name: source.AzureFile.SecretName, Field: at.Child("azureFile", "secretName").String()})
	}
	// Every other local reference of a volume names the Secret that holds the credentials of its storage.
	given, at := setField(at, reflect.ValueOf(source).Elem())
	if !given.IsValid() {
		return
	}
	for i := range given.NumField() {
		if ref, ok := given.Field(i).Interface().(*corev1.LocalObjectReference); ok && ref != nil {
			visit(Reference{Kind: volume.Secret, Name: ref.Name, Field: at.Child(nameOf(given.Type().Field(i)), "name").String()})
		}
	}
}

// Refs returns the objects that a pod's spec references, each once, in the order of VisitObjectRefs. namespace is the pod's namespace.
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

// Container is what init, regular and ephemeral containers have in common, with the path of the container.
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

func isTrue(b *bool) bool { return b != nil && *b }
