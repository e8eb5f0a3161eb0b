package check

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// octalLookalikes returns decimal numbers that are surely meant as octal modes, written without the leading zero.
func octalLookalikes() []int32 {
	return []int32{400, 440, 444, 500, 550, 555, 600, 640, 644, 660, 664, 666, 700, 750, 755, 775, 777}
}

// warnOfMode adds a warning for a mode that was surely meant as an octal number. field is its path in text, or "".
func (c *Checker) warnOfMode(at Location, path string, mode *int32, text []byte, field string) {
	const most = 0o777
	switch {
	case mode == nil || !slices.Contains(octalLookalikes(), *mode):
	case !isWritten(text, field, fmt.Sprint(*mode)): // "0620" means what it says
	case *mode > most:
		c.warning(at, path, fmt.Sprintf("%d is decimal and not a mode: the API server refuses it; write 0%d in YAML, with the zero", *mode, *mode))
	default:
		c.warning(at, path, fmt.Sprintf("%d is decimal: the file gets mode %04o; write 0%d in YAML, with the zero", *mode, *mode, *mode))
	}
}

// decimalModes checks the modes of a volume of the driver. Invalid modes are reported as problems elsewhere.
func (c *Checker) decimalModes(at Location, v *driverVolume) {
	warn := func(field string, mode *fs.FileMode) {
		if mode != nil {
			number := int32(*mode)
			c.warnOfMode(at, v.at+"."+field, &number, []byte(v.CSI.VolumeAttributes["sources"]), strings.TrimPrefix(field, "sources"))
		}
	}
	for i := range v.spec.Sources {
		s := &v.spec.Sources[i]
		warn(s.Field+".mode", s.Mode)
		if s.Projection == nil {
			continue
		}
		for j := range s.Projection.Items {
			warn(fmt.Sprintf("%s.items[%d].mode", s.Field, j), s.Projection.Items[j].Mode)
		}
	}
}

// nativeModes checks the modes of a pod's own volumes, which volumes of the driver may show.
func (c *Checker) nativeModes(at Location, template podTemplate) {
	for i := range template.spec.Volumes {
		v, path := &template.spec.Volumes[i], template.at.Child("volumes").Index(i)
		if v.ConfigMap != nil {
			c.ownModes(at, template.text, path.Child("configMap"), v.ConfigMap.DefaultMode, v.ConfigMap.Items)
		}
		if v.Secret != nil {
			c.ownModes(at, template.text, path.Child("secret"), v.Secret.DefaultMode, v.Secret.Items)
		}
		if v.Projected == nil {
			continue
		}
		path = path.Child("projected")
		c.ownModes(at, template.text, path, v.Projected.DefaultMode, nil)
		for j := range v.Projected.Sources {
			s, path := &v.Projected.Sources[j], path.Child("sources").Index(j)
			if s.ConfigMap != nil {
				c.ownModes(at, template.text, path.Child("configMap"), nil, s.ConfigMap.Items)
			}
			if s.Secret != nil {
				c.ownModes(at, template.text, path.Child("secret"), nil, s.Secret.Items)
			}
		}
	}
}

func (c *Checker) ownModes(at Location, text []byte, path *field.Path, preset *int32, items []corev1.KeyToPath) {
	warn := func(path *field.Path, mode *int32) { c.warnOfMode(at, path.String(), mode, text, path.String()) }
	warn(path.Child("defaultMode"), preset)
	for i := range items {
		warn(path.Child("items").Index(i).Child("mode"), items[i].Mode)
	}
}

// isWritten reports whether a field of a YAML text is written exactly as value. If the field is not found, it returns true.
func isWritten(text []byte, path, value string) bool {
	var root yamlv3.Node
	if yamlv3.Unmarshal(text, &root) != nil || len(root.Content) == 0 {
		return true
	}
	node := root.Content[0]
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if node = child(node, step); node == nil {
			return true
		}
	}
	return node.Value == value
}

// child returns a field of a mapping, or an item of a sequence, or nil.
func child(node *yamlv3.Node, step string) *yamlv3.Node {
	if node.Kind == yamlv3.AliasNode {
		node = node.Alias
	}
	if i, err := strconv.Atoi(step); err == nil && node.Kind == yamlv3.SequenceNode && i < len(node.Content) {
		return node.Content[i]
	}
	for i := 0; node.Kind == yamlv3.MappingNode && i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == step {
			return node.Content[i+1]
		}
	}
	return nil
}
