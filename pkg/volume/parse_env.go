package volume

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// podFields returns the fields of a pod that a publish request tells.
func podFields() []PodField {
	return []PodField{PodName, PodNamespace, PodUID, PodNodeName, PodServiceAccount}
}

// env reads a source of kind `env`.
func (p *parser) env(at *field.Path, node *yaml.Node) Source {
	file := &EnvFile{Format: EnvDotenv}
	p.object(at, node, map[string]visit{
		"path":    p.text(p.path(&file.Path)),
		"mode":    p.mode(&file.Mode),
		"format":  p.text(p.format(&file.Format)),
		"envFrom": p.envFrom(&file.From),
		"env":     p.envVars(&file.Vars),
	}, "path")
	return Source{Field: at.String(), Env: file}
}

// podEnv reads a source of kind `podEnv`.
func (p *parser) podEnv(at *field.Path, node *yaml.Node) Source {
	file := &PodEnvFile{Format: EnvDotenv}
	p.object(at, node, map[string]visit{
		"path":      p.text(p.path(&file.Path)),
		"mode":      p.mode(&file.Mode),
		"format":    p.text(p.format(&file.Format)),
		"container": p.text(p.container(&file.Container)),
	}, "path", "container")
	return Source{Field: at.String(), PodEnv: file}
}

func (p *parser) format(into *EnvFormat) func(*field.Path, string) {
	return func(at *field.Path, format string) {
		*into = EnvFormat(format)
		if known := []EnvFormat{EnvDotenv, EnvShell}; !slices.Contains(known, *into) {
			p.add(field.NotSupported(at, shorten(format), known))
		}
	}
}

func (p *parser) container(into *string) func(*field.Path, string) {
	return func(at *field.Path, name string) {
		*into = name
		if name == "" {
			p.add(field.Required(at, "must name a container of the pod"))
		} else if bad := utilvalidation.IsDNS1123Label(name); len(bad) > 0 {
			p.add(field.Invalid(at, shorten(name), strings.Join(bad, "; ")))
		}
	}
}

// envFrom reads a list of core/v1 EnvFromSource.
func (p *parser) envFrom(into *[]EnvFrom) visit {
	return p.list(func(at *field.Path, node *yaml.Node) {
		var from EnvFrom
		ref := func(kind Kind) visit {
			return func(at *field.Path, node *yaml.Node) {
				from.Ref, from.Field = Ref{Kind: kind, Namespace: p.pod.Namespace}, at.String()
				p.object(at, node, map[string]visit{
					"name":      p.text(p.name(&from.Ref)),
					"namespace": p.text(p.namespace(&from.Ref)),
					"optional":  p.boolean(&from.Optional),
				}, "name")
			}
		}
		p.oneOf(at, node,
			map[string]visit{"configMapRef": ref(ConfigMap), "secretRef": ref(Secret)},
			map[string]visit{"prefix": p.text(p.prefix(&from.Prefix))})
		*into = append(*into, from)
	})
}

// envVars reads a list of core/v1 EnvVar.
func (p *parser) envVars(into *[]EnvVar) visit {
	return p.list(func(at *field.Path, node *yaml.Node) {
		var variable EnvVar
		p.object(at, node, map[string]visit{
			"name":      p.text(p.variableName(&variable.Name)),
			"value":     p.text(func(_ *field.Path, value string) { variable.Value = value }),
			"valueFrom": p.valueFrom(&variable),
		}, "name")
		*into = append(*into, variable)
	})
}

func (p *parser) valueFrom(into *EnvVar) visit {
	key := func(kind Kind) visit {
		return func(at *field.Path, node *yaml.Node) {
			key := &EnvKey{Ref: Ref{Kind: kind, Namespace: p.pod.Namespace}, Field: at.String()}
			p.object(at, node, map[string]visit{
				"name":      p.text(p.name(&key.Ref)),
				"namespace": p.text(p.namespace(&key.Ref)),
				"key":       p.text(p.key(&key.Key)),
				"optional":  p.boolean(&key.Optional),
			}, "name", "key")
			into.Key = key
		}
	}
	return func(at *field.Path, node *yaml.Node) {
		p.oneOf(at, node, map[string]visit{
			"configMapKeyRef": key(ConfigMap),
			"secretKeyRef":    key(Secret),
			"fieldRef":        p.fieldRef(&into.FieldRef),
			// A publish request tells nothing of these.
			"resourceFieldRef": p.unknowable,
			"fileKeyRef":       p.unknowable,
		}, nil)
	}
}

func (p *parser) unknowable(at *field.Path, _ *yaml.Node) {
	p.add(field.Forbidden(at, "a volume can't know its value; set it in the container's own env"))
}

func (p *parser) fieldRef(into *PodField) visit {
	return func(at *field.Path, node *yaml.Node) {
		p.object(at, node, map[string]visit{
			"apiVersion": p.text(func(at *field.Path, version string) {
				if version != "" && version != "v1" {
					p.add(field.NotSupported(at, shorten(version), []string{"v1"}))
				}
			}),
			"fieldPath": p.text(func(at *field.Path, path string) {
				*into = PodField(path)
				if !slices.Contains(podFields(), *into) {
					p.add(field.NotSupported(at, shorten(path), podFields()))
				}
			}),
		}, "fieldPath")
	}
}

// variableName reads the name of a variable, by the rule of today's API server. A name
// that the format of the file can't hold is left out when the file is made.
func (p *parser) variableName(into *string) func(*field.Path, string) {
	return func(at *field.Path, name string) {
		*into = name
		if name == "" {
			p.add(field.Required(at, "must name a variable"))
			return
		}
		p.checkVariable(at, name)
	}
}

func (p *parser) prefix(into *string) func(*field.Path, string) {
	return func(at *field.Path, prefix string) {
		*into = prefix
		if prefix != "" {
			p.checkVariable(at, prefix)
		}
	}
}

func (p *parser) checkVariable(at *field.Path, name string) {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' || r == '=' }) {
		p.add(field.Invalid(at, shorten(name), fmt.Sprintf("must be printable ASCII characters but %q", "=")))
	}
}
