package volume

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxAttributesSize is the most bytes that the names and values of one volume's
// attributes may have together.
const MaxAttributesSize = 64 << 10

// Attribute names.
const (
	attrConfigMap   = "configMap"
	attrSecret      = "secret"
	attrNamespace   = "namespace"
	attrOptional    = "optional"
	attrItems       = "items"
	attrSources     = "sources"
	attrDefaultMode = "defaultMode"
)

// parser turns attributes into a spec. It lives for one call of Parse.
type parser struct {
	decoder
	attributes map[string]string
	pod        Pod
}

// Parse turns the attributes of a pod's volume into a validated Spec with defaults
// applied. attributes may hold the whole volume context; the kubelet's own keys
// are passed over. pod is whom the volume is for: its namespace is where the names
// are looked up.
//
// The error lists everything that is wrong, each with the field's path, the shape
// of the bad value and what would be right.
func Parse(attributes map[string]string, pod Pod) (*Spec, error) {
	p := &parser{attributes: Attributes(attributes), pod: pod}
	spec := p.spec()
	if len(p.errs) > 0 {
		return nil, p.errs.ToAggregate()
	}
	return spec, nil
}

func (p *parser) spec() *Spec {
	size := 0
	for name, value := range p.attributes {
		size += len(name) + len(value)
	}
	if size > MaxAttributesSize {
		p.add(field.TooLong(field.NewPath("volumeAttributes"), "", MaxAttributesSize))
		return nil
	}
	p.checkNames()

	spec := &Spec{DefaultMode: DefaultMode}
	if text, ok := p.attributes[attrDefaultMode]; ok {
		mode, err := ParseMode(text)
		if err != nil {
			p.add(field.Invalid(field.NewPath(attrDefaultMode), shorten(text), err.Error()))
		}
		spec.DefaultMode = mode
	}
	if _, ok := p.attributes[attrSources]; ok {
		spec.Sources = p.listForm()
	} else {
		spec.Sources = p.shortForm()
	}
	p.errs = append(p.errs, spec.checkCollisions()...)
	return spec
}

// checkNames refuses attributes that are unknown, and by name those that the
// contract has and this version has not.
func (p *parser) checkNames() {
	known := []string{attrConfigMap, attrSecret, attrNamespace, attrOptional, attrItems, attrSources, attrDefaultMode}
	for _, name := range sortedKeys(p.attributes) {
		switch name {
		case attrConfigMap, attrSecret, attrNamespace, attrOptional, attrItems, attrSources, attrDefaultMode:
		case "uid", "gid", "updatePolicy", "writeStrategy", "onDelete":
			p.add(notSupportedYet(field.NewPath(name)))
		default:
			p.add(field.Forbidden(field.NewPath(shorten(name)), "unknown attribute; known are "+strings.Join(known, ", ")))
		}
	}
}

// listForm reads the attribute `sources`.
func (p *parser) listForm() []Source {
	for _, name := range []string{attrConfigMap, attrSecret, attrNamespace, attrOptional, attrItems} {
		if _, ok := p.attributes[name]; ok {
			p.add(field.Forbidden(field.NewPath(name), "must not be set beside sources: name the object in sources"))
		}
	}
	var sources []Source
	at := field.NewPath(attrSources)
	p.document(at, p.attributes[attrSources], func(at *field.Path, value any) {
		p.list(func(at *field.Path, value any) {
			if source, ok := p.source(at, value); ok {
				sources = append(sources, source)
			}
		})(at, value)
		if elements, ok := value.([]any); ok && len(elements) == 0 {
			p.add(field.Required(at, "must have at least one source"))
		}
	})
	return sources
}

// source reads one element of `sources`.
func (p *parser) source(at *field.Path, value any) (Source, bool) {
	var found []Source
	projection := func(kind Kind) visit {
		return func(at *field.Path, value any) { found = append(found, p.projection(at, value, kind)) }
	}
	before := len(p.errs)
	p.object(at, value, map[string]visit{
		"configMap": projection(ConfigMap),
		"secret":    projection(Secret),
		"env":       p.unsupported,
		"podEnv":    p.unsupported,
	})
	if len(found) == 1 {
		return found[0], true
	}
	if len(found) > 1 {
		p.add(field.Invalid(at, shape(value), "must have one of configMap and secret: make a source of each"))
	} else if len(p.errs) == before {
		p.add(field.Required(at, "must have one of configMap and secret"))
	}
	return Source{}, false
}

// projection reads the fields of core/v1 ConfigMapProjection and SecretProjection,
// which are the same, plus namespace.
func (p *parser) projection(at *field.Path, value any, kind Kind) Source {
	source := Source{Ref: Ref{Kind: kind, Namespace: p.pod.Namespace}, Field: at.String()}
	p.object(at, value, map[string]visit{
		"name":      p.text(&source.Ref.Name),
		"namespace": p.text(&source.Ref.Namespace),
		"optional":  p.boolean(&source.Optional),
		"items":     p.items(&source),
	})
	p.checkRef(source.Ref, at.Child("name"), at.Child("namespace"))
	return source
}

// items reads a list of key, path and mode.
func (p *parser) items(into *Source) visit {
	return p.list(func(at *field.Path, value any) {
		var item Item
		p.object(at, value, map[string]visit{
			"key":  p.text(&item.Key),
			"path": p.text(&item.Path),
			"mode": p.mode(&item.Mode),
		})
		if item.Key == "" {
			p.add(field.Required(at.Child("key"), "must name a key of the object"))
		} else if bad := utilvalidation.IsConfigMapKey(item.Key); len(bad) > 0 {
			p.add(field.Invalid(at.Child("key"), shorten(item.Key), strings.Join(bad, "; ")))
		}
		if item.Path == "" {
			p.add(field.Required(at.Child("path"), "must be a relative path"))
		} else if clean, err := CleanPath(item.Path); err != nil {
			p.add(field.Invalid(at.Child("path"), shorten(item.Path), err.Error()))
		} else {
			item.Path = clean
		}
		into.Items = append(into.Items, item)
	})
}

// shortForm reads the attributes that name a single object.
func (p *parser) shortForm() []Source {
	configMap, hasConfigMap := p.attributes[attrConfigMap]
	secret, hasSecret := p.attributes[attrSecret]
	switch {
	case hasConfigMap && hasSecret:
		p.add(field.Forbidden(field.NewPath(attrSecret), "must not be set beside configMap: list both in sources"))
		return nil
	case !hasConfigMap && !hasSecret:
		p.add(field.Required(field.NewPath(attrSources), "one of configMap, secret and sources must be set"))
		return nil
	}
	name, kind, at := configMap, ConfigMap, field.NewPath(attrConfigMap)
	if hasSecret {
		name, kind, at = secret, Secret, field.NewPath(attrSecret)
	}
	source := Source{Ref: Ref{Kind: kind, Namespace: p.pod.Namespace, Name: name}, Field: at.String()}
	if namespace, ok := p.attributes[attrNamespace]; ok {
		source.Ref.Namespace = namespace
	}
	p.checkRef(source.Ref, at, field.NewPath(attrNamespace))
	switch text, ok := p.attributes[attrOptional]; {
	case text == "true":
		source.Optional = true
	case ok && text != "false":
		p.add(field.NotSupported(field.NewPath(attrOptional), shorten(text), []string{"false", "true"}))
	}
	if text, ok := p.attributes[attrItems]; ok {
		p.document(field.NewPath(attrItems), text, p.items(&source))
	}
	return []Source{source}
}

// checkRef validates the name and the namespace of an object.
func (p *parser) checkRef(ref Ref, name, namespace *field.Path) {
	if ref.Name == "" {
		p.add(field.Required(name, fmt.Sprintf("must name a %s", ref.Kind)))
	} else if bad := validation.NameIsDNSSubdomain(ref.Name, false); len(bad) > 0 {
		p.add(field.Invalid(name, shorten(ref.Name), strings.Join(bad, "; ")))
	}
	if ref.Namespace != p.pod.Namespace {
		p.add(field.Invalid(namespace, shorten(ref.Namespace),
			fmt.Sprintf("must be the pod's own namespace %q: another one is not supported yet by this version of refvol", p.pod.Namespace)))
	}
}
