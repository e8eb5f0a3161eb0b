package volume

import (
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// env reads the variables of an env file or of a text.
func (p *parser) env(at *field.Path, from *env, ofText bool) *Env {
	e := &Env{}
	each(&p.decoder, at.Child("envFrom"), from.EnvFrom, func(at *field.Path, from *envFrom) {
		if from.Prefix != "" {
			p.variable(at.Child("prefix"), from.Prefix, ofText)
		}
		name, ok := p.oneOf(at, from)
		if !ok {
			return
		}
		kind, object := ConfigMap, from.ConfigMapRef
		if from.SecretRef != nil {
			kind, object = Secret, from.SecretRef
		}
		at = at.Child(name)
		ref := p.ref(at.Child("name"), at, kind, object.Name, object.Namespace)
		if ofText {
			p.noCanary(at, object.Canary)
		}
		isOptional := p.canary(at, object.Canary, object.Optional)
		e.From = append(e.From, EnvFrom{Prefix: from.Prefix, Ref: ref, Optional: isOptional, Canary: object.Canary, Field: at.String()})
	})
	each(&p.decoder, at.Child("env"), from.Env, func(at *field.Path, from *envVar) {
		// A name that the file's format cannot hold is left out when the file is made.
		p.variable(at.Child("name"), from.Name, ofText)
		variable := p.envVar(at.Child("valueFrom"), from)
		if ofText && variable.Key != nil {
			p.noCanary(field.NewPath(variable.Key.Field), variable.Key.Canary)
		}
		variable.Escape = p.escape(at.Child("escape"), from.Escape, ofText)
		e.Vars = append(e.Vars, variable)
	})
	return e
}

// variable reads the name of a variable, or a prefix of names. In a text, names with $, ( or ) would be ambiguous.
func (p *parser) variable(at *field.Path, name string, ofText bool) {
	if p.valid(at, name, "must name a variable", utilvalidation.IsRelaxedEnvVarName) && ofText && strings.ContainsAny(name, "$()") {
		p.add(field.Invalid(at, shorten(name), "must not contain $, ( or ): the text refers to the variable by $(NAME)"))
	}
}

// escape reads how a variable's value is written.
func (p *parser) escape(at *field.Path, from *Escape, ofText bool) Escape {
	switch {
	case from == nil:
		return ""
	case !ofText:
		p.add(field.Forbidden(at, "must not be set in an env file, whose format says how values are quoted; only expand has it"))
	default:
		supported(p, at, *from, EscapeJSON, EscapeURL, EscapeNone)
	}
	return *from
}

func (p *parser) envVar(at *field.Path, v *envVar) EnvVar {
	variable := EnvVar{Name: v.Name, Value: v.Value}
	if v.ValueFrom == nil {
		return variable
	}
	name, ok := p.oneOf(at, v.ValueFrom)
	if !ok {
		return variable
	}
	at = at.Child(name)
	switch from := v.ValueFrom; {
	case from.ConfigMapKeyRef != nil:
		variable.Key = p.keyRef(at, ConfigMap, from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		variable.Key = p.keyRef(at, Secret, from.SecretKeyRef)
	case from.FieldRef != nil:
		variable.FieldRef = from.FieldRef.FieldPath
		if from.FieldRef.APIVersion != "" {
			supported(p, at.Child("apiVersion"), from.FieldRef.APIVersion, "v1")
		}
		supported(p, at.Child("fieldPath"), variable.FieldRef, PodFields()...)
	default:
		p.add(field.Forbidden(at, "a volume can't know its value; set it in the container's own env"))
	}
	return variable
}

func (p *parser) keyRef(at *field.Path, kind Kind, from *keyRef) *Reference {
	ref := p.ref(at.Child("name"), at, kind, from.Name, from.Namespace)
	p.key(at.Child("key"), from.Key)
	return &Reference{Ref: ref, Key: from.Key, Optional: p.canary(at, from.Canary, from.Optional), Canary: from.Canary, Field: at.String()}
}
