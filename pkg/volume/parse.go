package volume

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Attribute names.
const (
	attrConfigMap    = "configMap"
	attrSecret       = "secret"
	attrVolume       = "volume"
	attrNamespace    = "namespace"
	attrOptional     = "optional"
	attrItems        = "items"
	attrSources      = "sources"
	attrDefaultMode  = "defaultMode"
	attrUID          = "uid"
	attrGID          = "gid"
	attrUpdatePolicy = "updatePolicy"
	attrStrategy     = "writeStrategy"
	attrOnDelete     = "onDelete"
)

// maxID is the largest user or group id; it is what the API server allows for a
// pod's own.
const maxID = 1<<31 - 1

// parser turns attributes into a spec. It lives for one call of Parse.
type parser struct {
	decoder
	attributes map[string]string
	pod        Pod
	// across says that refs may name other namespaces than the pod's.
	across bool
	// volumes holds where each of the pod's own volumes was named.
	volumes map[string]string
}

// Option changes what Parse accepts.
type Option func(*parser)

// AcrossNamespaces lets refs name other namespaces than the pod's. Whether the pod may
// have those objects is not for Parse to say.
func AcrossNamespaces() Option { return func(p *parser) { p.across = true } }

// Parse turns the attributes of a pod's volume into a validated Spec with defaults
// applied. attributes may hold the whole volume context; the kubelet's own keys
// are passed over. pod is whom the volume is for: its namespace is where names without
// one are looked up, and without AcrossNamespaces the only one.
//
// The error lists everything that is wrong, each with the field's path, the shape
// of the bad value and what would be right.
func Parse(attributes map[string]string, pod Pod, options ...Option) (*Spec, error) {
	p := &parser{attributes: Attributes(attributes), pod: pod, volumes: map[string]string{}}
	for _, option := range options {
		option(p)
	}
	spec := p.spec()
	if err := p.err(); err != nil {
		return nil, err
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

	spec := &Spec{}
	if text, ok := p.attributes[attrDefaultMode]; ok {
		mode, err := ParseMode(text)
		if err != nil {
			p.add(field.Invalid(field.NewPath(attrDefaultMode), shorten(text), err.Error()))
		}
		spec.DefaultMode = &mode
	}
	spec.UID, spec.GID = p.id(attrUID), p.id(attrGID)
	spec.UpdatePolicy = choice(p, attrUpdatePolicy, UpdateLive, UpdatePinned)
	spec.WriteStrategy = choice(p, attrStrategy, WriteAtomic, WriteInPlace)
	spec.OnDelete = choice(p, attrOnDelete, DeleteKeep, DeleteRemove)
	if _, ok := p.attributes[attrSources]; ok {
		spec.Sources = p.listForm()
	} else {
		spec.Sources = p.shortForm()
	}
	for _, err := range spec.checkCollisions() {
		p.add(err)
	}
	if err := spec.CheckReferences(); err != nil {
		p.add(err)
	}
	return spec
}

// id reads a decimal user or group id; nil if the attribute is not there.
func (p *parser) id(name string) *int64 {
	text, ok := p.attributes[name]
	if !ok {
		return nil
	}
	id, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		p.add(field.Invalid(field.NewPath(name), shorten(text), fmt.Sprintf("must be a decimal number from 0 to %d", maxID)))
		return nil
	}
	n := int64(id)
	return &n
}

// choice reads an attribute that has one of some values, of which the first is the
// default.
func choice[T ~string](p *parser, name string, values ...T) T {
	text, ok := p.attributes[name]
	if !ok {
		return values[0]
	}
	if !slices.Contains(values, T(text)) {
		p.add(field.NotSupported(field.NewPath(name), shorten(text), values))
	}
	return T(text)
}

// checkNames refuses attributes that are unknown.
func (p *parser) checkNames() {
	known := attributeNames()
	for _, name := range sortedKeys(p.attributes) {
		if !slices.Contains(known, name) {
			p.add(field.Forbidden(field.NewPath(fieldName(name)), "unknown attribute; known are "+strings.Join(known, ", ")))
		}
	}
}

// listForm reads the attribute `sources`.
func (p *parser) listForm() []Source {
	for _, name := range []string{attrConfigMap, attrSecret, attrVolume, attrNamespace, attrOptional, attrItems} {
		if _, ok := p.attributes[name]; ok {
			p.add(field.Forbidden(field.NewPath(name), "must not be set beside sources: name the object in sources"))
		}
	}
	var sources []Source
	p.document(field.NewPath(attrSources), p.attributes[attrSources], func(at *field.Path, node *yaml.Node) {
		if node.Kind == yaml.SequenceNode && len(node.Content) > MaxSources {
			p.add(TooMany(at.String(), len(node.Content), fmt.Sprintf("a volume may have at most %d sources; show the others in another volume", MaxSources)))
			return
		}
		p.list(func(at *field.Path, node *yaml.Node) {
			if source, ok := p.source(at, node); ok {
				sources = append(sources, source)
			}
		})(at, node)
		if node.Kind == yaml.SequenceNode && len(node.Content) == 0 {
			p.add(field.Required(at, "must have at least one source"))
		}
	})
	return sources
}

// source reads one element of `sources`.
func (p *parser) source(at *field.Path, node *yaml.Node) (Source, bool) {
	var source Source
	found := p.oneOf(at, node, map[string]visit{
		"configMap": func(at *field.Path, node *yaml.Node) { source = p.projection(at, node, ConfigMap) },
		"secret":    func(at *field.Path, node *yaml.Node) { source = p.projection(at, node, Secret) },
		"volume":    func(at *field.Path, node *yaml.Node) { source = p.volume(at, node) },
		"env":       func(at *field.Path, node *yaml.Node) { source = p.env(at, node) },
		"podEnv":    func(at *field.Path, node *yaml.Node) { source = p.podEnv(at, node) },
	}, nil)
	return source, found
}

// projection reads the fields of core/v1 ConfigMapProjection and SecretProjection,
// which are the same, plus namespace.
func (p *parser) projection(at *field.Path, node *yaml.Node, kind Kind) Source {
	projection := &Projection{Ref: Ref{Kind: kind, Namespace: p.pod.Namespace}}
	p.object(at, node, map[string]visit{
		"name":      p.text(p.name(&projection.Ref)),
		"namespace": p.text(p.namespace(&projection.Ref)),
		"optional":  p.boolean(&projection.Optional),
		"items":     p.items(projection),
	}, "name")
	return Source{Field: at.String(), Projection: projection}
}

// items reads a list of key, path, mode and user. An item that is refused keeps its
// place in the list, with an empty path.
func (p *parser) items(into *Projection) visit {
	return p.list(func(at *field.Path, node *yaml.Node) {
		var item Item
		p.object(at, node, map[string]visit{
			"key":  p.text(p.key(&item.Key)),
			"path": p.text(p.path(&item.Path)),
			"mode": p.mode(&item.Mode),
			"user": p.user(&item.User),
		}, "key", "path")
		into.Items = append(into.Items, item)
	})
}

func (p *parser) key(into *string) func(*field.Path, string) {
	return func(at *field.Path, key string) {
		*into = key
		if key == "" {
			p.add(field.Required(at, "must name a key of the object"))
		} else if bad := utilvalidation.IsConfigMapKey(key); len(bad) > 0 {
			p.add(field.Invalid(at, shorten(key), strings.Join(bad, "; ")))
		}
	}
}

func (p *parser) path(into *string) func(*field.Path, string) {
	return func(at *field.Path, path string) {
		if path == "" {
			p.add(field.Required(at, "must be a relative path"))
		} else if clean, err := CleanPath(path); err != nil {
			p.add(field.Invalid(at, shorten(path), err.Error()))
		} else {
			*into = clean
		}
	}
}

// shortForm reads the attributes that name a single object or volume.
func (p *parser) shortForm() []Source {
	var given []string
	for _, name := range []string{attrConfigMap, attrSecret, attrVolume} {
		if _, ok := p.attributes[name]; ok {
			given = append(given, name)
		}
	}
	switch {
	case len(given) > 1:
		p.add(field.Forbidden(field.NewPath(given[1]), fmt.Sprintf("must not be set beside %s: list both in sources", given[0])))
		return nil
	case len(given) == 0:
		p.add(field.Required(field.NewPath(attrSources), "one of configMap, secret, volume and sources must be set"))
		return nil
	}
	name, kind, at := p.attributes[given[0]], ConfigMap, field.NewPath(given[0])
	switch given[0] {
	case attrVolume:
		return []Source{p.shortVolume(at, name)}
	case attrSecret:
		kind = Secret
	}
	projection := &Projection{Ref: Ref{Kind: kind, Namespace: p.pod.Namespace}}
	p.name(&projection.Ref)(at, name)
	if namespace, ok := p.attributes[attrNamespace]; ok {
		p.namespace(&projection.Ref)(field.NewPath(attrNamespace), namespace)
	}
	switch text, ok := p.attributes[attrOptional]; {
	case text == "true":
		projection.Optional = true
	case ok && text != "false":
		p.add(field.NotSupported(field.NewPath(attrOptional), shorten(text), []string{"false", "true"}))
	}
	if text, ok := p.attributes[attrItems]; ok {
		p.document(field.NewPath(attrItems), text, p.items(projection))
	}
	return []Source{{Field: at.String(), Projection: projection}}
}

// name reads the name of an object.
func (p *parser) name(into *Ref) func(*field.Path, string) {
	return func(at *field.Path, name string) {
		into.Name = name
		if err := checkName(at, into.Kind, name); err != nil {
			p.add(err)
		}
	}
}

// checkName returns what is wrong with the name of an object at a path, or nil.
func checkName(at *field.Path, kind Kind, name string) *field.Error {
	if name == "" {
		return field.Required(at, fmt.Sprintf("must name a %s", kind))
	}
	if bad := validation.NameIsDNSSubdomain(name, false); len(bad) > 0 {
		return field.Invalid(at, shorten(name), strings.Join(bad, "; "))
	}
	return nil
}

// namespace reads the namespace of an object.
func (p *parser) namespace(into *Ref) func(*field.Path, string) {
	return func(at *field.Path, namespace string) {
		into.Namespace = namespace
		bad := validation.ValidateNamespaceName(namespace, false)
		switch {
		case namespace == "":
			p.add(field.Required(at, "must name a namespace; leave the field out for the pod's own"))
		case len(bad) > 0:
			p.add(field.Invalid(at, shorten(namespace), strings.Join(bad, "; ")))
		case namespace != p.pod.Namespace && !p.across:
			p.add(field.Invalid(at, shorten(namespace),
				fmt.Sprintf("must be the pod's own namespace %q: this node's plugin shows no objects of others (--cross-namespace)", p.pod.Namespace)))
		}
	}
}
