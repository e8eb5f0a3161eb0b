package check

import (
	"fmt"
	"io/fs"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// meantAsOctal are decimal numbers that nobody means: without their leading zero, YAML and JSON read octal modes so.
func meantAsOctal() []int32 {
	return []int32{400, 440, 444, 500, 550, 555, 600, 640, 644, 660, 664, 666, 700, 750, 755, 775, 777}
}

// warnOfMode warns of a mode that was surely meant as an octal number.
func (c *Checker) warnOfMode(at Location, path string, mode *int32) {
	const most = 0o777
	switch {
	case mode == nil || !slices.Contains(meantAsOctal(), *mode):
	case *mode > most:
		c.warning(at, path, fmt.Sprintf("%d is decimal, and no mode: the API server refuses it; for mode 0%d write that in YAML, with its zero", *mode, *mode))
	default:
		c.warning(at, path, fmt.Sprintf("%d is decimal: the file gets mode %04o; for mode 0%d write that in YAML, with its zero", *mode, *mode, *mode))
	}
}

// decimalModes looks at the modes of a volume of the driver. What is no mode is a problem already.
func (c *Checker) decimalModes(at Location, v *driverVolume) {
	warn := func(path string, mode *fs.FileMode) {
		if mode != nil {
			number := int32(*mode)
			c.warnOfMode(at, path, &number)
		}
	}
	for i := range v.spec.Sources {
		s := &v.spec.Sources[i]
		warn(v.at+"."+s.Field+".mode", s.Mode)
		if s.Projection == nil {
			continue
		}
		for j := range s.Projection.Items {
			warn(fmt.Sprintf("%s.%s.items[%d].mode", v.at, s.Field, j), s.Projection.Items[j].Mode)
		}
	}
}

// nativeModes looks at the modes of a pod's own volumes, which volumes of the driver may show.
func (c *Checker) nativeModes(at Location, template podTemplate) {
	for i := range template.spec.Volumes {
		v, path := &template.spec.Volumes[i], template.at.Child("volumes").Index(i)
		if v.ConfigMap != nil {
			c.ownModes(at, path.Child("configMap"), v.ConfigMap.DefaultMode, v.ConfigMap.Items)
		}
		if v.Secret != nil {
			c.ownModes(at, path.Child("secret"), v.Secret.DefaultMode, v.Secret.Items)
		}
		if v.Projected == nil {
			continue
		}
		path = path.Child("projected")
		c.ownModes(at, path, v.Projected.DefaultMode, nil)
		for j := range v.Projected.Sources {
			s, path := &v.Projected.Sources[j], path.Child("sources").Index(j)
			if s.ConfigMap != nil {
				c.ownModes(at, path.Child("configMap"), nil, s.ConfigMap.Items)
			}
			if s.Secret != nil {
				c.ownModes(at, path.Child("secret"), nil, s.Secret.Items)
			}
		}
	}
}

func (c *Checker) ownModes(at Location, path *field.Path, preset *int32, items []corev1.KeyToPath) {
	c.warnOfMode(at, path.Child("defaultMode").String(), preset)
	for i := range items {
		c.warnOfMode(at, path.Child("items").Index(i).Child("mode").String(), items[i].Mode)
	}
}
