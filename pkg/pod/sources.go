package pod

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// VolumeSources returns the sources of a volume of a pod's spec of type configMap or secret, or of a projected volume that has only such
// sources: one source for each object, in the volume's order. at is the path of the spec, as in field.NewPath("spec"), and the fields in
// the result are paths below it, such as spec.volumes[1].projected.sources[0].secret. namespace is the pod's namespace.
//
// The error says that there is no volume of that name, or it is a *field.Error with the path of what cannot be shown.
func VolumeSources(spec *corev1.PodSpec, at *field.Path, namespace, name string) ([]volume.Source, error) {
	i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		var names []string
		for i := range spec.Volumes {
			if spec.Volumes[i].CSI == nil { // a CSI volume may be the one that asks
				names = append(names, spec.Volumes[i].Name)
			}
		}
		return nil, notFoundError("volume", name, names)
	}
	objects, err := objectsOf(at.Child("volumes").Index(i), &spec.Volumes[i].VolumeSource)
	if err != nil {
		return nil, err
	}
	var sources []volume.Source
	for i := range objects {
		projection, err := objects[i].projection(namespace)
		if err != nil {
			return nil, err
		}
		sources = append(sources, volume.Source{Projection: projection, Volume: name, Field: objects[i].at.String()})
	}
	return sources, nil
}

// notFoundError returns the error for a name that the pod does not have. It lists the first few names that the pod has.
func notFoundError(what, name string, known []string) error {
	const few = 5
	text := fmt.Sprintf("the pod has no %s %q", what, name)
	if len(known) > 0 {
		text += "; it has " + strings.Join(known[:min(few, len(known))], ", ")
	}
	return errors.New(text)
}

// object is a reference to an object in a volume that shows it. The defaults are those of the volume, at defaultsAt.
type object struct {
	at, nameAt  *field.Path
	kind        volume.Kind
	name        string
	optional    *bool
	items       []corev1.KeyToPath
	defaultsAt  *field.Path
	defaultMode *int32
	defaultUser *int64
}

// objectsOf returns the objects that a volume shows. The error is about the first source that is not an object.
func objectsOf(at *field.Path, source *corev1.VolumeSource) (objects []object, err error) {
	switch {
	case source.ConfigMap != nil:
		v, at := source.ConfigMap, at.Child("configMap")
		return []object{{at, at.Child("name"), volume.ConfigMap, v.Name, v.Optional, v.Items, at, v.DefaultMode, v.DefaultUser}}, nil
	case source.Secret != nil:
		v, at := source.Secret, at.Child("secret")
		return []object{{at, at.Child("secretName"), volume.Secret, v.SecretName, v.Optional, v.Items, at, v.DefaultMode, v.DefaultUser}}, nil
	case source.Projected == nil:
		_, at = setField(at, reflect.ValueOf(source).Elem())
		return nil, field.Forbidden(at, "a volume source shows a configMap, secret or projected volume; mount this one itself")
	}
	v, at := source.Projected, at.Child("projected")
	for i := range v.Sources {
		switch source, sourceAt := &v.Sources[i], at.Child("sources").Index(i); {
		case source.ConfigMap != nil:
			p, sourceAt := source.ConfigMap, sourceAt.Child("configMap")
			objects = append(objects, object{sourceAt, sourceAt.Child("name"), volume.ConfigMap, p.Name, p.Optional, p.Items, at, v.DefaultMode, v.DefaultUser})
		case source.Secret != nil:
			p, sourceAt := source.Secret, sourceAt.Child("secret")
			objects = append(objects, object{sourceAt, sourceAt.Child("name"), volume.Secret, p.Name, p.Optional, p.Items, at, v.DefaultMode, v.DefaultUser})
		case err == nil:
			_, sourceAt = setField(sourceAt, reflect.ValueOf(source).Elem())
			err = field.Forbidden(sourceAt, "a volume source shows configMap and secret sources only; move this one to another projected volume, and mount that beside it")
		}
	}
	return objects, err
}

// projection returns the projection that the reference describes, or the first error.
func (o *object) projection(namespace string) (*volume.Projection, error) {
	p := &volume.Projection{
		Ref:         volume.Ref{Kind: o.kind, Namespace: namespace, Name: o.name},
		Optional:    isTrue(o.optional),
		DefaultMode: modeOf(o.defaultMode),
		DefaultUser: o.defaultUser,
	}
	err := cmp.Or(checkName(o.nameAt, o.kind, o.name),
		check(o.defaultsAt.Child("defaultMode"), o.defaultMode, volume.CheckMode),
		check(o.defaultsAt.Child("defaultUser"), o.defaultUser, volume.CheckUser))
	if err != nil {
		return nil, err
	}
	for i := range o.items {
		from, at := &o.items[i], o.at.Child("items").Index(i)
		if from.Key == "" {
			return nil, field.Required(at.Child("key"), "must name a key of the object")
		}
		path, bad := volume.CleanPath(from.Path)
		if bad != nil {
			return nil, field.Invalid(at.Child("path"), fmt.Sprintf("a string of %d bytes", len(from.Path)), bad.Error())
		}
		if err := cmp.Or(check(at.Child("mode"), from.Mode, volume.CheckMode), check(at.Child("user"), from.User, volume.CheckUser)); err != nil {
			return nil, err
		}
		p.Items = append(p.Items, volume.Item{Key: from.Key, Path: path, Mode: modeOf(from.Mode), User: from.User})
	}
	return p, nil
}

// check returns an error if n is set and refuse returns an error for it.
func check[T any](at *field.Path, n *T, refuse func(T) error) *field.Error {
	if n == nil {
		return nil
	}
	if err := refuse(*n); err != nil {
		return field.Invalid(at, *n, err.Error())
	}
	return nil
}

func modeOf(m *int32) *fs.FileMode {
	if m == nil {
		return nil
	}
	return new(fs.FileMode(*m))
}

// checkName returns an error for a name for which no request can be sent. Kubernetes only checks that a pod's spec has a name there. A
// valid name that no object can have is treated as a missing object, as the kubelet does.
func checkName(at *field.Path, kind volume.Kind, name string) *field.Error {
	const most = validation.DNS1123SubdomainMaxLength
	if name == "" {
		return field.Required(at, fmt.Sprintf("must name a %s", kind))
	}
	if len(name) > most {
		return field.Invalid(at, fmt.Sprintf("a string of %d bytes", len(name)), fmt.Sprintf("must be no more than %d bytes", most))
	}
	if bad := content.IsPathSegmentName(name); len(bad) > 0 {
		return field.Invalid(at, name, strings.Join(bad, "; "))
	}
	return nil
}

// setField returns the field that is set in a struct of pointers, with its path. If none is set, as with a field of a newer API, it returns
// no value and at itself.
func setField(at *field.Path, union reflect.Value) (reflect.Value, *field.Path) {
	for i := range union.NumField() {
		if f := union.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			return f.Elem(), at.Child(nameOf(union.Type().Field(i)))
		}
	}
	return reflect.Value{}, at
}

// nameOf returns a field's name in JSON.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
