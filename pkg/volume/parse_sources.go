package volume

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// listForm reads the attribute sources.
func (p *parser) listForm(text string) []Source {
	for _, name := range p.set("configMap", "secret", attrVolume, attrNamespace, "optional", attrItems) {
		p.add(field.Forbidden(field.NewPath(name), "must not be set beside sources: name the object in sources"))
	}
	at := field.NewPath(attrSources)
	elements, ok := p.list(at, text)
	if ok && len(elements) == 0 {
		p.add(field.Required(at, "must have at least one source"))
	}
	var sources []Source
	each(&p.decoder, at, elements, func(at *field.Path, from *source) {
		if kind, ok := p.oneOf(at, from); ok {
			sources = append(sources, p.source(at.Child(kind), from))
		}
	})
	return sources
}

// source reads one element of sources. at is the field that gives its type.
func (p *parser) source(at *field.Path, from *source) Source {
	s := Source{Field: at.String()}
	file := func(path string) string { return p.path(at.Child("path"), path) }
	mode := func(mode *intstr.IntOrString) *fs.FileMode { return p.mode(at.Child("mode"), mode) }
	switch {
	case from.ConfigMap != nil:
		s.Projection = p.projection(at.Child("name"), at, ConfigMap, from.ConfigMap)
		s = s.In(p.below(at.Child("path"), from.ConfigMap.Path))
	case from.Secret != nil:
		s.Projection = p.projection(at.Child("name"), at, Secret, from.Secret)
		s = s.In(p.below(at.Child("path"), from.Secret.Path))
	case from.Volume != nil:
		s.Volume, s.Below = p.volume(at.Child("name"), from.Volume.Name), p.below(at.Child("path"), from.Volume.Path)
	case from.Env != nil:
		s.Path, s.Mode, s.Format = file(from.Env.Path), mode(from.Env.Mode), p.format(at.Child("format"), from.Env.Format)
		s.Env = p.env(at, from.Env, false)
	case from.PodEnv != nil:
		s.Path, s.Mode, s.Format = file(from.PodEnv.Path), mode(from.PodEnv.Mode), p.format(at.Child("format"), from.PodEnv.Format)
		p.valid(at.Child("container"), from.PodEnv.Container, "must name a container of the pod", utilvalidation.IsDNS1123Label)
		s.PodEnv = &PodEnv{Container: from.PodEnv.Container}
	case from.Join != nil:
		s.Path, s.Mode = file(from.Join.Path), mode(from.Join.Mode)
		s.Join = p.join(at.Child(attrSources), from.Join.Sources)
	case from.Expand != nil:
		s.Path, s.Mode = file(from.Expand.Path), mode(from.Expand.Mode)
		s.Expand = p.expand(at, from.Expand)
	case from.Versions != nil:
		if p.versions != "" {
			p.add(field.Forbidden(at, "must not be there twice: "+p.versions+" is the same file"))
		}
		p.versions, s.Versions = s.Field, true
		s.Path, s.Mode = file(from.Versions.Path), mode(from.Versions.Mode)
	}
	return s
}

// projection reads the fields that name an object and its keys.
func (p *parser) projection(nameAt, at *field.Path, kind Kind, from *projection) *Projection {
	ref := p.ref(nameAt, at, kind, from.Name, from.Namespace)
	return &Projection{Ref: ref, Items: p.items(at.Child(attrItems), from.Items), Optional: p.canary(at, from.Canary, from.Optional), Canary: from.Canary}
}

// join reads the parts of a joined file.
func (p *parser) join(at *field.Path, elements []json.RawMessage) []Reference {
	if len(elements) == 0 {
		p.add(field.Required(at, "must have at least one source"))
	}
	parts := []Reference{}
	each(&p.decoder, at, elements, func(at *field.Path, from *joinSource) {
		if part := p.oneKey(at, from); part != nil {
			parts = append(parts, *part)
		}
	})
	return parts
}

// oneKey reads a key of an object. It returns nil if there is none, or several.
func (p *parser) oneKey(at *field.Path, from *joinSource) *Reference {
	kind, ok := p.oneOf(at, from)
	switch {
	case !ok:
		return nil
	case from.Secret != nil:
		p.noCanary(at.Child(kind), from.Secret.Canary)
		return p.keyRef(at.Child(kind), Secret, from.Secret)
	default:
		p.noCanary(at.Child(kind), from.ConfigMap.Canary)
		return p.keyRef(at.Child(kind), ConfigMap, from.ConfigMap)
	}
}

// expand reads a text and its variables.
func (p *parser) expand(at *field.Path, from *expand) *Expand {
	e := &Expand{}
	if text := p.oneKey(at, &joinSource{ConfigMap: from.ConfigMap, Secret: from.Secret}); text != nil {
		e.Text = *text
	}
	e.Env = *p.env(at, &env{EnvFrom: from.EnvFrom, Env: from.Env}, true)
	if len(from.EnvFrom)+len(from.Env) == 0 {
		p.add(field.Required(at.Child("env"), "must have at least one variable, or envFrom an object"))
	}
	return e
}

// items reads a list of items. A refused path becomes "".
func (p *parser) items(at *field.Path, elements []json.RawMessage) []Item {
	var items []Item
	each(&p.decoder, at, elements, func(at *field.Path, from *item) {
		p.key(at.Child("key"), from.Key)
		items = append(items, Item{Key: from.Key, Path: p.path(at.Child("path"), from.Path), Mode: p.mode(at.Child("mode"), from.Mode), User: from.User})
		if from.User != nil {
			if err := CheckUser(*from.User); err != nil {
				p.add(field.Invalid(at.Child("user"), *from.User, err.Error()))
			}
		}
	})
	return items
}

// format reads the format of an env file. The default is EnvDotenv.
func (p *parser) format(at *field.Path, from *EnvFormat) EnvFormat {
	if from == nil {
		return EnvDotenv
	}
	supported(p, at, *from, EnvDotenv, EnvShell, EnvEnviron)
	return *from
}

// below reads the directory of a source. It returns the zero Directory if none is set.
func (p *parser) below(at *field.Path, dir *string) Directory {
	switch {
	case dir == nil:
		return Directory{}
	case *dir != "" && path.Clean(*dir) == ".":
		p.add(field.Invalid(at, shorten(*dir), "must be a directory in the volume; leave the field out for the volume itself"))
		return Directory{}
	}
	return Directory{Path: p.path(at, *dir), Field: at.String()}
}

// path returns the clean form of a path, or "" if it was refused.
func (p *parser) path(at *field.Path, path string) string {
	clean, err := CleanPath(path)
	switch {
	case path == "":
		p.add(field.Required(at, "must be a relative path"))
	case err != nil:
		p.add(field.Invalid(at, shorten(path), err.Error()))
	}
	return clean
}

// mode reads a mode: an integer as in Kubernetes, or an octal string.
func (p *parser) mode(at *field.Path, from *intstr.IntOrString) *fs.FileMode {
	if from == nil {
		return nil
	}
	mode, shown, err := fs.FileMode(from.IntVal), any(from.IntVal), CheckMode(from.IntVal)
	if from.Type == intstr.String {
		mode, err = ParseMode(from.StrVal)
		shown = shorten(from.StrVal)
	}
	if err != nil {
		p.add(field.Invalid(at, shown, err.Error()))
	}
	return &mode
}

// shortForm reads the attributes that name a single object or volume.
func (p *parser) shortForm(a attributes) []Source {
	given := p.set("configMap", "secret", attrVolume)
	switch {
	case len(given) > 1:
		p.add(field.Forbidden(field.NewPath(given[1]), fmt.Sprintf("must not be set beside %s: list both in sources", given[0])))
		return nil
	case len(given) == 0 && slices.ContainsFunc(p.errs, func(err *field.Error) bool { return err.Type == field.ErrorTypeForbidden }):
		return nil // an unknown attribute may be the intended one
	case len(given) == 0:
		p.add(field.Required(field.NewPath(attrSources), "one of configMap, secret, volume and sources must be set"))
		return nil
	}
	at := field.NewPath(given[0])
	if a.Volume != nil {
		for _, name := range p.set(attrNamespace, "optional", attrItems) {
			p.add(field.Forbidden(field.NewPath(name), "must not be set beside volume: the pod's own volume sets this"))
		}
		return []Source{{Field: at.String(), Volume: p.volume(at, *a.Volume)}}
	}
	kind, from := ConfigMap, &projection{Name: p.given[given[0]], Namespace: a.Namespace}
	if a.Secret != nil {
		kind = Secret
	}
	if a.Optional != nil {
		supported(p, field.NewPath("optional"), *a.Optional, "false", "true")
		from.Optional = new(*a.Optional == "true")
	}
	if a.Items != nil {
		from.Items, _ = p.list(field.NewPath(attrItems), *a.Items)
	}
	return []Source{{Field: at.String(), Projection: p.projection(at, nil, kind, from)}}
}

// ref reads the name of an object, and its namespace below at. The default is the pod's own namespace.
func (p *parser) ref(nameAt, at *field.Path, kind Kind, name string, namespace *string) Ref {
	p.valid(nameAt, name, fmt.Sprintf("must name a %s", kind), func(name string) []string { return validation.NameIsDNSSubdomain(name, false) })
	ref := Ref{Kind: kind, Namespace: p.pod.Namespace, Name: name}
	if namespace == nil || *namespace == p.pod.Namespace {
		return ref
	}
	ref.Namespace, at = *namespace, at.Child(attrNamespace)
	ok := p.valid(at, *namespace, "must name a namespace; leave the field out for the pod's own", func(name string) []string { return validation.ValidateNamespaceName(name, false) })
	if ok && !p.across {
		p.add(field.Invalid(at, *namespace, fmt.Sprintf("must be the pod's own namespace %q: this node's plugin shows no objects of others (--cross-namespace)", p.pod.Namespace)))
	}
	return ref
}

func (p *parser) key(at *field.Path, key string) {
	p.valid(at, key, "must name a key of the object", utilvalidation.IsConfigMapKey)
}

// volume reads the name of one of the pod's own volumes. Two sources must not show the same volume, because the number of sources limits
// what a volume shows.
func (p *parser) volume(at *field.Path, name string) string {
	p.valid(at, name, "must name a volume of the pod", utilvalidation.IsDNS1123Label)
	if other, again := p.volumes[name]; again && name != "" {
		p.add(field.Invalid(at, shorten(name), fmt.Sprintf("must not be shown twice: %s shows it", other)))
	}
	p.volumes[name] = at.String()
	return name
}
