package suite

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// randomEnv makes environments out of what some reader takes for syntax. The objects
// that they refer to have the same keys in each pod, and other values.
type randomEnv struct{ *rand.Rand }

// envObject names an object that environments refer to; absent ones don't exist.
type envObject struct{ kind, name string }

func envObjects() []envObject {
	return []envObject{{kindConfigMap, "one"}, {kindConfigMap, "two"}, {kindSecret, "one"}, {kindSecret, "two"}}
}

const absent = "absent"

// one returns one of the list.
func (r *randomEnv) one(list ...string) string { return list[r.IntN(len(list))] }

// value returns a text that is hard to quote, or to expand.
func (r *randomEnv) value() string {
	var value strings.Builder
	for range r.IntN(6) {
		value.WriteString(r.one(
			"'", `"`, "`", `\`, "$", "#", " ", "\n", "\r", "\t", "=", ";", "!", "~", "(", ")", "{", "a", "0", "é", "😀", "\u2028", "\x01",
			"$(A)", "$(B)", "$(C)", "$(V1)", "$$(A)", "$$$(A)", "$(UNKNOWN)", "$(", "$()", "$(A", "$(a.b)", "$A", "${A}", "$é", "$(P_A)", "$(A$(B))",
			`\n`, `''`, "export X=1\n", "A=x\n", "#x", " # x",
		))
	}
	return value.String()
}

// key returns a key of an object; all of them can be keys, not all of them variables.
func (r *randomEnv) key() string { return r.one(envKeys()...) }

func envKeys() []string {
	return []string{"A", "B", "C", "D", "a_b", "a.b", "a-b", "1A", "-x", ".x"}
}

// name returns the name of a variable.
func (r *randomEnv) name() string {
	return r.one("A", "B", "C", "V1", "V2", "V3", "P_A", "P_B", "lower", "_x", "a.b", "1A", "sp ace", "a-b", `q"uote`, "$X", "X(")
}

func (r *randomEnv) createObjects(n *namespace) {
	n.t.Helper()
	for _, o := range envObjects() {
		c := contents{text: map[string]string{}}
		for _, key := range envKeys() {
			// What is left out is for the optional references.
			if r.IntN(4) > 0 {
				c.text[key] = r.value()
			}
		}
		c.text["always"] = r.value()
		if o.kind == kindConfigMap {
			c.binary = map[string][]byte{"binary": notText()}
		}
		n.put(o.kind, o.name, c)
	}
}

// pod describes a pod whose containers have random environments. Each has a volume
// with the env files that are to hold the same.
func (r *randomEnv) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	spec := newPod("reader")
	spec.Spec.EnableServiceLinks = new(false)
	spec.Spec.Containers = nil
	for i := range envContainers {
		name := fmt.Sprintf("c%d", i)
		env := corev1.Container{EnvFrom: r.envFrom(), Env: r.env()}
		volume := refvol(name, attributes{"sources": envSources(t, name, env)})
		c := newContainer(name, []corev1.Volume{volume})
		c.EnvFrom, c.Env = env.EnvFrom, env.Env
		spec.Spec.Containers = append(spec.Spec.Containers, c)
		spec.Spec.Volumes = append(spec.Spec.Volumes, volume)
	}
	return spec
}

// envSources returns the sources of a container's env files, in the format of shells.
func envSources(t *testing.T, container string, env corev1.Container) string {
	t.Helper()
	var sources []map[string]any
	for _, kind := range envSourceKinds() {
		source := map[string]any{"path": envPath(container, kind), "format": "shell"}
		if kind == "podEnv" {
			source["container"] = container
		} else {
			source["envFrom"], source["env"] = env.EnvFrom, env.Env
		}
		sources = append(sources, map[string]any{kind: source})
	}
	return toJSON(t, sources)
}

func (r *randomEnv) envFrom() []corev1.EnvFromSource {
	list := []corev1.EnvFromSource{}
	for range r.IntN(4) {
		o := envObjects()[r.IntN(len(envObjects()))]
		source := corev1.EnvFromSource{Prefix: r.one("", "", "P_", "1", "p.q-")}
		ref := corev1.LocalObjectReference{Name: o.name}
		var isOptional *bool
		if r.IntN(3) == 0 {
			ref.Name, isOptional = r.one(o.name, absent), new(true)
		}
		if o.kind == kindSecret {
			source.SecretRef = &corev1.SecretEnvSource{LocalObjectReference: ref, Optional: isOptional}
		} else {
			source.ConfigMapRef = &corev1.ConfigMapEnvSource{LocalObjectReference: ref, Optional: isOptional}
		}
		list = append(list, source)
	}
	return list
}

func (r *randomEnv) env() []corev1.EnvVar {
	list := []corev1.EnvVar{}
	for range r.IntN(15) {
		v := corev1.EnvVar{Name: r.name()}
		switch r.IntN(5) {
		case 0:
			v.ValueFrom = r.keyRef()
		case 1:
			v.ValueFrom = &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: r.one(
				"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
			)}}
		default:
			v.Value = r.value()
		}
		list = append(list, v)
	}
	return list
}

// keyRef returns a reference to a key, which is optional unless the key is there.
func (r *randomEnv) keyRef() *corev1.EnvVarSource {
	o := envObjects()[r.IntN(len(envObjects()))]
	ref, key, isOptional := corev1.LocalObjectReference{Name: o.name}, "always", (*bool)(nil)
	if r.IntN(2) == 0 {
		ref.Name, key, isOptional = r.one(o.name, o.name, absent), r.one(r.key(), "binary"), new(true)
	}
	if o.kind == kindSecret {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref, Key: key, Optional: isOptional}}
	}
	return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: key, Optional: isOptional}}
}
