package check

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/refvol/refvol/pkg/volume"
)

// texts adds a warning for each variable that the text of an expand source does not use. Variables from whole objects only count if the
// text uses the shell's form for them.
func (c *Checker) texts(ctx context.Context, at Location, volumes []driverVolume) error {
	for _, v := range volumes {
		for i := range v.spec.Sources {
			source := &v.spec.Sources[i]
			if source.Expand == nil || c.objects[source.Expand.Text.Ref].Exists != Yes {
				continue
			}
			from := source.Expand.Text
			text, err := c.opts.Cluster.Text(ctx, from.Ref, from.Key)
			if err != nil {
				return fmt.Errorf("get key %s of %s: %w", from.Key, from.Ref, err)
			}
			if text != nil {
				c.warnOfUnused(at, v.at, source, text)
			}
		}
	}
	return nil
}

// warnOfUnused adds warnings for the variables that one text does not use.
func (c *Checker) warnOfUnused(at Location, attributes string, source *volume.Source, text []byte) {
	from := source.Expand
	warn := func(field, name string, isNamed bool) {
		switch isShell := bytes.Contains(text, []byte("${"+name+"}")); {
		case isUsed(text, name) || slices.ContainsFunc(from.Env.Vars, func(v volume.EnvVar) bool { return isUsed([]byte(v.Value), name) }):
		case isShell:
			c.warning(at, attributes+"."+field, fmt.Sprintf("the text has ${%s}, which stays as it is: write $(%s)", name, name))
		case isNamed:
			c.warning(at, attributes+"."+field, fmt.Sprintf("the text doesn't use variable %s: write $(%s) where its value belongs, or remove the variable", name, name))
		}
	}
	for _, whole := range from.Env.From {
		for _, key := range sets.List(c.objects[whole.Ref].Data) {
			warn(whole.Field, whole.Prefix+key, false)
		}
	}
	for i := range from.Env.Vars {
		warn(fmt.Sprintf("%s.env[%d].name", source.Field, i), from.Env.Vars[i].Name, true)
	}
}

// isUsed reports whether a text has $(NAME) without a dollar before it.
func isUsed(text []byte, name string) bool {
	reference := []byte("$(" + name + ")")
	return bytes.Contains(bytes.ReplaceAll(text, append([]byte("$"), reference...), []byte(" ")), reference)
}

// Text implements Cluster.
func (s *APIServer) Text(ctx context.Context, ref volume.Ref, key string) ([]byte, error) {
	var text []byte
	var err error
	if ref.Kind == volume.Secret {
		var object *corev1.Secret
		if object, err = s.Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}); err == nil {
			text = object.Data[key]
		}
	} else {
		var object *corev1.ConfigMap
		if object, err = s.ConfigMaps(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}); err == nil {
			text = object.BinaryData[key]
			if value, ok := object.Data[key]; ok {
				text = []byte(value)
			}
		}
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		err = nil
	}
	return text, err
}
