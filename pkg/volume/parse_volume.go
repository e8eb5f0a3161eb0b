package volume

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// volume reads a source of kind `volume`.
func (p *parser) volume(at *field.Path, node *yaml.Node) Source {
	source := Source{Field: at.String()}
	p.object(at, node, map[string]visit{"name": p.text(p.volumeName(&source.Volume))}, "name")
	return source
}

// shortVolume reads the attribute `volume`. All else is in the volume that it names.
func (p *parser) shortVolume(at *field.Path, name string) Source {
	source := Source{Field: at.String()}
	p.volumeName(&source.Volume)(at, name)
	for _, other := range []string{attrNamespace, attrOptional, attrItems} {
		if _, ok := p.attributes[other]; ok {
			p.add(field.Forbidden(field.NewPath(other), "must not be set beside volume: what the pod's own volume says counts"))
		}
	}
	return source
}

// volumeName reads the name of one of the pod's own volumes. Two sources must not show the
// same one: what a volume may show is bounded by the number of its sources.
func (p *parser) volumeName(into *string) func(*field.Path, string) {
	return func(at *field.Path, name string) {
		*into = name
		if name == "" {
			p.add(field.Required(at, "must name a volume of the pod"))
			return
		}
		if bad := utilvalidation.IsDNS1123Label(name); len(bad) > 0 {
			p.add(field.Invalid(at, shorten(name), strings.Join(bad, "; ")))
			return
		}
		if other, again := p.volumes[name]; again {
			p.add(field.Invalid(at, name, fmt.Sprintf("must not be shown twice: %s shows it", other)))
			return
		}
		p.volumes[name] = at.String()
	}
}
