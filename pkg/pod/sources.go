package pod

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// VolumeSources returns what a volume of a pod's spec shows, if it is of type configMap or secret, or
// projected with sources of these types only: one source for each object, in its order.
// at is the path of the spec, as in field.NewPath("spec"), and the fields in the result are
// paths below it, such as spec.volumes[1].projected.sources[0].secret. namespace is the pod's.
//
// The error says that there is no volume of that name, or it is a *field.Error with the path of
// what can't be shown.
func VolumeSources(spec *corev1.PodSpec, at *field.Path, namespace, name string) ([]volume.Source, error) {
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == name {
			s := shown{namespace: namespace}
			if err := s.volume(at.Child("volumes").Index(i), &spec.Volumes[i].VolumeSource); err != nil {
				return nil, err
			}
			return s.sources, nil
		}
	}
	return nil, fmt.Errorf("the pod has no volume %q%s", name, others(spec.Volumes))
}

// others names the first volumes that there are, as the end of a text.
func others(volumes []corev1.Volume) string {
	const few = 5
	var names []string
	for i := range volumes {
		if volumes[i].CSI != nil {
			continue // which may be the one that asks
		}
		if names = append(names, volumes[i].Name); len(names) == few {
			break
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; it has " + strings.Join(names, ", ")
}

// shown collects what one volume shows. Its methods return nil or the first error.
type shown struct {
	namespace string
	sources   []volume.Source
}

func (s *shown) volume(at *field.Path, source *corev1.VolumeSource) *field.Error {
	switch {
	case source.ConfigMap != nil:
		v, at := source.ConfigMap, at.Child("configMap")
		return s.add(at, at.Child("name"), volume.ConfigMap, v.Name, isTrue(v.Optional), v.Items, at, v.DefaultMode, v.DefaultUser)
	case source.Secret != nil:
		v, at := source.Secret, at.Child("secret")
		return s.add(at, at.Child("secretName"), volume.Secret, v.SecretName, isTrue(v.Optional), v.Items, at, v.DefaultMode, v.DefaultUser)
	case source.Projected != nil:
		return s.projected(at.Child("projected"), source.Projected)
	}
	return field.Forbidden(set(at, *source), "a volume source shows a configMap, secret or projected volume; mount this one itself")
}

func (s *shown) projected(at *field.Path, v *corev1.ProjectedVolumeSource) *field.Error {
	defaultsAt := at
	for i := range v.Sources {
		var err *field.Error
		switch source, at := &v.Sources[i], at.Child("sources").Index(i); {
		case source.ConfigMap != nil:
			p, at := source.ConfigMap, at.Child("configMap")
			err = s.add(at, at.Child("name"), volume.ConfigMap, p.Name, isTrue(p.Optional), p.Items, defaultsAt, v.DefaultMode, v.DefaultUser)
		case source.Secret != nil:
			p, at := source.Secret, at.Child("secret")
			err = s.add(at, at.Child("name"), volume.Secret, p.Name, isTrue(p.Optional), p.Items, defaultsAt, v.DefaultMode, v.DefaultUser)
		default:
			err = field.Forbidden(set(at, *source), "a volume source shows configMap and secret sources only; move this one to another projected volume, and mount that beside it")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add adds an object. The defaults are the volume's, at defaultsAt.
func (s *shown) add(at, nameAt *field.Path, kind volume.Kind, name string, optional bool, items []corev1.KeyToPath, defaultsAt *field.Path, defaultMode *int32, defaultUser *int64) *field.Error {
	if err := checkName(nameAt, kind, name); err != nil {
		return err
	}
	p := &volume.Projection{Ref: volume.Ref{Kind: kind, Namespace: s.namespace, Name: name}, Optional: optional}
	var err *field.Error
	if p.DefaultMode, err = mode(defaultsAt.Child("defaultMode"), defaultMode); err != nil {
		return err
	}
	if p.DefaultUser, err = user(defaultsAt.Child("defaultUser"), defaultUser); err != nil {
		return err
	}
	for i := range items {
		item, err := itemOf(at, i, &items[i])
		if err != nil {
			return err
		}
		p.Items = append(p.Items, item)
	}
	s.sources = append(s.sources, volume.Source{Projection: p, Field: at.String()})
	return nil
}

// checkName refuses a name for which no request can be sent. Kubernetes checks none in a pod's spec but for being
// there. One that no object can have is that of a missing object, as for the kubelet.
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

// itemOf returns item i of the source at a path. The item's own path is made for an error only.
func itemOf(source *field.Path, i int, from *corev1.KeyToPath) (volume.Item, *field.Error) {
	at := func(name string) *field.Path { return source.Child("items").Index(i).Child(name) }
	if from.Key == "" {
		return volume.Item{}, field.Required(at("key"), "must name a key of the object")
	}
	path, bad := volume.CleanPath(from.Path)
	if bad != nil {
		return volume.Item{}, field.Invalid(at("path"), fmt.Sprintf("a string of %d bytes", len(from.Path)), bad.Error())
	}
	item := volume.Item{Key: from.Key, Path: path}
	var err *field.Error
	if from.Mode != nil {
		if item.Mode, err = mode(at("mode"), from.Mode); err != nil {
			return volume.Item{}, err
		}
	}
	if from.User != nil {
		if item.User, err = user(at("user"), from.User); err != nil {
			return volume.Item{}, err
		}
	}
	return item, nil
}

func user(at *field.Path, u *int64) (*int64, *field.Error) {
	if u == nil {
		return nil, nil
	}
	if err := volume.CheckUser(*u); err != nil {
		return nil, field.Invalid(at, *u, err.Error())
	}
	return u, nil
}

func mode(at *field.Path, m *int32) (*fs.FileMode, *field.Error) {
	if m == nil {
		return nil, nil
	}
	if *m < 0 || *m > 0o777 {
		return nil, field.Invalid(at, *m, "must be an integer from 0 to 511 (octal 0777)")
	}
	mode := fs.FileMode(*m)
	return &mode, nil
}

// set returns the path of the one field that is set of a struct of pointers: at itself if none
// is, as where a newer API has a field that this version does not know.
func set(at *field.Path, union any) *field.Path {
	v := reflect.ValueOf(union)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return at.Child(name)
		}
	}
	return at
}
