package volume

import (
	"encoding/json"
	"slices"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// envSource reads a source of kind `env`.
func (p *parser) envSource(at *field.Path, value []byte) *EnvFile {
	from := env{envFile: envFile{Format: EnvDotenv}}
	file := &EnvFile{}
	if !p.decode(at, value, &from) {
		return file
	}
	file.Path, file.Mode, file.Format = p.envFile(at, from.envFile)
	for i, value := range from.EnvFrom {
		file.From = append(file.From, p.envFrom(at.Child("envFrom").Index(i), value))
	}
	for i, value := range from.Env {
		file.Vars = append(file.Vars, p.envVar(at.Child("env").Index(i), value))
	}
	return file
}

// podEnvSource reads a source of kind `podEnv`.
func (p *parser) podEnvSource(at *field.Path, value []byte) *PodEnvFile {
	from := podEnv{envFile: envFile{Format: EnvDotenv}}
	file := &PodEnvFile{}
	if !p.decode(at, value, &from) {
		return file
	}
	file.Path, file.Mode, file.Format = p.envFile(at, from.envFile)
	file.Container = from.Container
	p.valid(at.Child("container"), from.Container, "must name a container of the pod", utilvalidation.IsDNS1123Label)
	return file
}

func (p *parser) envFrom(at *field.Path, element []byte) EnvFrom {
	var from envFrom
	if !p.oneOf(at, element, &from) {
		return EnvFrom{}
	}
	if from.Prefix != "" {
		p.valid(at.Child("prefix"), from.Prefix, "", utilvalidation.IsRelaxedEnvVarName)
	}
	kind, name, value := ConfigMap, "configMapRef", from.ConfigMapRef
	if from.SecretRef != nil {
		kind, name, value = Secret, "secretRef", from.SecretRef
	}
	at = at.Child(name)
	object := objectRef{Namespace: p.pod.Namespace}
	if !p.decode(at, *value, &object) {
		return EnvFrom{}
	}
	return EnvFrom{Prefix: from.Prefix, Ref: p.ref(at, kind, object), Optional: object.Optional, Field: at.String()}
}

// envVar reads a variable. A name that the format of the file can't hold is left out when the file is made.
func (p *parser) envVar(at *field.Path, value []byte) EnvVar {
	var from envVar
	if !p.decode(at, value, &from) {
		return EnvVar{}
	}
	p.valid(at.Child("name"), from.Name, "must name a variable", utilvalidation.IsRelaxedEnvVarName)
	variable := EnvVar{Name: from.Name, Value: from.Value}
	if from.ValueFrom != nil {
		p.valueFrom(at.Child("valueFrom"), *from.ValueFrom, &variable)
	}
	return variable
}

func (p *parser) valueFrom(at *field.Path, value []byte, into *EnvVar) {
	var from valueFrom
	if !p.oneOf(at, value, &from) {
		return
	}
	const unknowable = "a volume can't know its value; set it in the container's own env"
	switch {
	case from.ConfigMapKeyRef != nil:
		into.Key = p.keyRef(at.Child("configMapKeyRef"), *from.ConfigMapKeyRef, ConfigMap)
	case from.SecretKeyRef != nil:
		into.Key = p.keyRef(at.Child("secretKeyRef"), *from.SecretKeyRef, Secret)
	case from.FieldRef != nil:
		into.FieldRef = p.fieldRef(at.Child("fieldRef"), *from.FieldRef)
	case from.ResourceFieldRef != nil:
		p.add(field.Forbidden(at.Child("resourceFieldRef"), unknowable))
	case from.FileKeyRef != nil:
		p.add(field.Forbidden(at.Child("fileKeyRef"), unknowable))
	}
}

func (p *parser) keyRef(at *field.Path, value json.RawMessage, kind Kind) *Reference {
	from := keyRef{objectRef: objectRef{Namespace: p.pod.Namespace}}
	if !p.decode(at, value, &from) {
		return nil
	}
	key := &Reference{Ref: p.ref(at, kind, from.objectRef), Key: from.Key, Optional: from.Optional, Field: at.String()}
	p.valid(at.Child("key"), from.Key, noKey, utilvalidation.IsConfigMapKey)
	return key
}

// fieldRef reads a field of the pod: one of those that a publish request tells.
func (p *parser) fieldRef(at *field.Path, value []byte) PodField {
	var from fieldRef
	if !p.decode(at, value, &from) {
		return ""
	}
	if from.APIVersion != "" && from.APIVersion != "v1" {
		p.add(field.NotSupported(at.Child("apiVersion"), shorten(from.APIVersion), []string{"v1"}))
	}
	known := []PodField{PodName, PodNamespace, PodUID, PodNodeName, PodServiceAccount}
	if !slices.Contains(known, from.FieldPath) {
		p.add(field.NotSupported(at.Child("fieldPath"), shorten(string(from.FieldPath)), known))
	}
	return from.FieldPath
}
