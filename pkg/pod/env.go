package pod

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// unknownKind describes a source of a newer API version, of which nothing can be decoded.
const unknownKind = "a source of an unknown kind"

// Env returns the variables of an init or regular container of a pod's spec. namespace is the pod's namespace, where the named objects are.
// The fields in the result are paths in the pod, such as spec.containers[1].envFrom[0].configMapRef.
//
// leftOut lists the variables whose values cannot be known from a publish request, sorted, each with its source: NAME (resourceFieldRef
// limits.cpu). They are also in env, marked as unknown.
//
// The error lists the containers if none has that name, or it names the reference that lacks the name of an object or key.
func Env(spec *corev1.PodSpec, namespace, name string) (env volume.Env, leftOut []string, err error) {
	c, err := find(spec, name)
	if err != nil {
		return volume.Env{}, nil, err
	}
	e := readEnv(c, namespace)
	if len(e.errs) > 0 {
		return volume.Env{}, nil, e.errs.ToAggregate()
	}
	return e.env, slices.Sorted(maps.Values(e.leftOut)), nil
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
	return Container{}, notFoundError("container", name, names)
}

// environment collects one container's variables.
type environment struct {
	namespace string
	env       volume.Env
	// leftOut holds a description of each variable that is left out, by the variable's name.
	leftOut map[string]string
	errs    field.ErrorList
}

// readEnv reads the variables of a container. namespace is the pod's namespace.
func readEnv(c Container, namespace string) *environment {
	e := &environment{namespace: namespace, leftOut: map[string]string{}}
	for i := range c.EnvFrom {
		from, at := &c.EnvFrom[i], c.At.Child("envFrom").Index(i)
		switch {
		case from.ConfigMapRef != nil:
			e.from(at.Child("configMapRef"), from.Prefix, volume.ConfigMap, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		case from.SecretRef != nil:
			e.from(at.Child("secretRef"), from.Prefix, volume.Secret, from.SecretRef.Name, from.SecretRef.Optional)
		default:
			e.leftOut[at.String()] = fmt.Sprintf("%s (%s)", at, unknownKind)
		}
	}
	for i := range c.Env {
		v := volume.EnvVar{Name: c.Env[i].Name, Value: c.Env[i].Value}
		unknown := e.valueFrom(c.At.Child("env").Index(i).Child("valueFrom"), c.Env[i].ValueFrom, &v)
		delete(e.leftOut, v.Name)
		if unknown != "" && v.Value == "" { // as in the kubelet, a value that is not empty wins over valueFrom
			v = volume.EnvVar{Name: v.Name, Unknown: true}
			e.leftOut[v.Name] = fmt.Sprintf("%s (%s)", v.Name, unknown)
		}
		e.env.Vars = append(e.env.Vars, v)
	}
	return e
}

func (e *environment) from(at *field.Path, prefix string, kind volume.Kind, name string, optional *bool) {
	e.env.From = append(e.env.From, volume.EnvFrom{Prefix: prefix, Ref: e.ref(at, kind, name), Optional: isTrue(optional), Field: at.String()})
}

// valueFrom sets the source of a variable's value, or returns a description of a source that cannot be known.
func (e *environment) valueFrom(at *field.Path, from *corev1.EnvVarSource, v *volume.EnvVar) (unknown string) {
	switch {
	case from == nil:
	case from.FieldRef != nil:
		v.FieldRef = volume.PodField(from.FieldRef.FieldPath)
		version := from.FieldRef.APIVersion
		if version != "" && version != "v1" || !slices.Contains(volume.PodFields(), v.FieldRef) {
			return "fieldRef " + from.FieldRef.FieldPath
		}
	case from.ResourceFieldRef != nil:
		return "resourceFieldRef " + from.ResourceFieldRef.Resource
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		v.Key = e.key(at.Child("configMapKeyRef"), volume.ConfigMap, r.Name, r.Key, r.Optional)
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		v.Key = e.key(at.Child("secretKeyRef"), volume.Secret, r.Name, r.Key, r.Optional)
	case from.FileKeyRef != nil:
		r := from.FileKeyRef
		return fmt.Sprintf("fileKeyRef %s %s %s", r.VolumeName, r.Path, r.Key)
	default:
		return unknownKind
	}
	return ""
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
