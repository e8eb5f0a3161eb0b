package pod

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// unknownKind is what a source of a newer API is to this version: nothing of it is
// decoded.
const unknownKind = "a source of an unknown kind"

// Env returns the variables of an init or regular container of a pod's spec.
// namespace is the pod's: that is where the objects are that the variables name. The
// fields in the result are paths below the pod, such as
// spec.containers[1].envFrom[0].configMapRef.
//
// leftOut lists, sorted, the variables whose values no publish request tells, each with
// what it would have been: NAME (resourceFieldRef limits.cpu). They are in env too, as
// unknown.
//
// The error says which containers there are if none has that name, or which reference
// lacks the name of an object or key.
func Env(spec *corev1.PodSpec, namespace, name string) (env volume.Env, leftOut []string, err error) {
	c, err := find(spec, name)
	if err != nil {
		return volume.Env{}, nil, err
	}
	r := environment{namespace: namespace, leftOut: map[string]string{}}
	r.from(c.At.Child("envFrom"), c.EnvFrom)
	r.vars(c.At.Child("env"), c.Env)
	if len(r.errs) > 0 {
		return volume.Env{}, nil, r.errs.ToAggregate()
	}
	return r.env, slices.Sorted(maps.Values(r.leftOut)), nil
}

// find returns the init or regular container with a name.
func find(spec *corev1.PodSpec, name string) (Container, error) {
	all := Containers(spec, field.NewPath("spec"))
	all = all[:len(spec.InitContainers)+len(spec.Containers)]
	names := make([]string, 0, len(all))
	for _, c := range all {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return Container{}, fmt.Errorf("the pod has no container %q; it has %s", name, strings.Join(names, ", "))
}

// environment collects one container's variables.
type environment struct {
	namespace string
	env       volume.Env
	// leftOut holds what of each variable is left out, by its name.
	leftOut map[string]string
	errs    field.ErrorList
}

func (e *environment) from(at *field.Path, sources []corev1.EnvFromSource) {
	for i := range sources {
		s, at := &sources[i], at.Index(i)
		from := volume.EnvFrom{Prefix: s.Prefix}
		switch {
		case s.ConfigMapRef != nil:
			at = at.Child("configMapRef")
			from.Ref, from.Optional = e.ref(at, volume.ConfigMap, s.ConfigMapRef.Name), isTrue(s.ConfigMapRef.Optional)
		case s.SecretRef != nil:
			at = at.Child("secretRef")
			from.Ref, from.Optional = e.ref(at, volume.Secret, s.SecretRef.Name), isTrue(s.SecretRef.Optional)
		default:
			e.leftOut[at.String()] = fmt.Sprintf("%s (%s)", at, unknownKind)
			continue
		}
		from.Field = at.String()
		e.env.From = append(e.env.From, from)
	}
}

func (e *environment) vars(at *field.Path, variables []corev1.EnvVar) {
	for i := range variables {
		v := &variables[i]
		variable, unknown := e.variable(at.Index(i).Child("valueFrom"), v)
		if unknown == "" {
			delete(e.leftOut, v.Name)
		} else {
			variable = volume.EnvVar{Name: v.Name, Unknown: true}
			e.leftOut[v.Name] = fmt.Sprintf("%s (%s)", v.Name, unknown)
		}
		e.env.Vars = append(e.env.Vars, variable)
	}
}

// variable returns one variable, or what it is whose value can't be known. A value
// that is not empty beats valueFrom, as in the kubelet.
func (e *environment) variable(at *field.Path, v *corev1.EnvVar) (variable volume.EnvVar, unknown string) {
	variable = volume.EnvVar{Name: v.Name, Value: v.Value}
	from := v.ValueFrom
	if v.Value != "" || from == nil {
		return variable, ""
	}
	switch {
	case from.FieldRef != nil:
		variable.FieldRef = volume.PodField(from.FieldRef.FieldPath)
		if !isKnown(from.FieldRef) {
			unknown = "fieldRef " + from.FieldRef.FieldPath
		}
	case from.ResourceFieldRef != nil:
		unknown = "resourceFieldRef " + from.ResourceFieldRef.Resource
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		variable.Key = e.key(at.Child("configMapKeyRef"), volume.ConfigMap, r.Name, r.Key, r.Optional)
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		variable.Key = e.key(at.Child("secretKeyRef"), volume.Secret, r.Name, r.Key, r.Optional)
	case from.FileKeyRef != nil:
		r := from.FileKeyRef
		unknown = fmt.Sprintf("fileKeyRef %s %s %s", r.VolumeName, r.Path, r.Key)
	default:
		unknown = unknownKind
	}
	return variable, unknown
}

func (e *environment) key(at *field.Path, kind volume.Kind, name, key string, optional *bool) *volume.Reference {
	if key == "" {
		e.errs = append(e.errs, field.Required(at.Child("key"), "must name a key of the object"))
	}
	return &volume.Reference{Ref: e.ref(at, kind, name), Key: key, Optional: isTrue(optional), Field: at.String()}
}

func (e *environment) ref(at *field.Path, kind volume.Kind, name string) volume.Ref {
	if err := checkName(at.Child("name"), kind, name); err != nil {
		e.errs = append(e.errs, err)
	}
	return volume.Ref{Kind: kind, Namespace: e.namespace, Name: name}
}

// isKnown says whether a publish request tells the value of a field.
func isKnown(ref *corev1.ObjectFieldSelector) bool {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return false
	}
	switch volume.PodField(ref.FieldPath) {
	case volume.PodName, volume.PodNamespace, volume.PodUID, volume.PodNodeName, volume.PodServiceAccount:
		return true
	}
	return false
}
