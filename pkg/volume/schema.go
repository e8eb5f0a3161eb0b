package volume

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// These types have the fields that a pod's author writes. docs/attributes.md explains them. The elements of lists are raw, because each is
// decoded by itself, so that its errors have its index. In an object that decoder.oneOf checks, exactly one of the pointers to structs must
// be set.

// attributes are all attributes of a volume. Each value is a string.
type attributes struct {
	ConfigMap     *string       `json:"configMap"`
	Secret        *string       `json:"secret"`
	Volume        *string       `json:"volume"`
	Namespace     *string       `json:"namespace"`
	Optional      *string       `json:"optional"`
	Items         *string       `json:"items"`
	Sources       *string       `json:"sources"`
	DefaultMode   *string       `json:"defaultMode"`
	UID           *string       `json:"uid"`
	GID           *string       `json:"gid"`
	UpdatePolicy  UpdatePolicy  `json:"updatePolicy"`
	WriteStrategy WriteStrategy `json:"writeStrategy"`
	OnDelete      DeletePolicy  `json:"onDelete"`
	Spread        *string       `json:"spread"`
	SameRevision  *string       `json:"sameRevision"`
	Directories   *string       `json:"directories"`
}

// source is an element of sources.
type source struct {
	ConfigMap *projection `json:"configMap"`
	Secret    *projection `json:"secret"`
	Volume    *podVolume  `json:"volume"`
	Env       *env        `json:"env"`
	PodEnv    *podEnv     `json:"podEnv"`
	Join      *join       `json:"join"`
	Expand    *expand     `json:"expand"`
	Versions  *versions   `json:"versions"`
}

// projection has the fields of core/v1 ConfigMapProjection and SecretProjection, plus namespace, path and canary.
type projection struct {
	Name      string            `json:"name"`
	Path      *string           `json:"path"`
	Namespace *string           `json:"namespace"`
	Optional  *bool             `json:"optional"`
	Canary    bool              `json:"canary"`
	Items     []json.RawMessage `json:"items"`
}

// item is core/v1 KeyToPath.
type item struct {
	Key  string              `json:"key"`
	Path string              `json:"path"`
	Mode *intstr.IntOrString `json:"mode"`
	User *int64              `json:"user"`
}

type podVolume struct {
	Name string  `json:"name"`
	Path *string `json:"path"`
}

type env struct {
	Path    string              `json:"path"`
	Mode    *intstr.IntOrString `json:"mode"`
	Format  *EnvFormat          `json:"format"`
	EnvFrom []json.RawMessage   `json:"envFrom"`
	Env     []json.RawMessage   `json:"env"`
}

type podEnv struct {
	Path      string              `json:"path"`
	Mode      *intstr.IntOrString `json:"mode"`
	Format    *EnvFormat          `json:"format"`
	Container string              `json:"container"`
}

type join struct {
	Path    string              `json:"path"`
	Mode    *intstr.IntOrString `json:"mode"`
	Sources []json.RawMessage   `json:"sources"`
}

// expand has the object of the text, of which exactly one must be set, and the variables as in env.
type expand struct {
	Path      string              `json:"path"`
	Mode      *intstr.IntOrString `json:"mode"`
	ConfigMap *keyRef             `json:"configMap"`
	Secret    *keyRef             `json:"secret"`
	EnvFrom   []json.RawMessage   `json:"envFrom"`
	Env       []json.RawMessage   `json:"env"`
}

type versions struct {
	Path string              `json:"path"`
	Mode *intstr.IntOrString `json:"mode"`
}

// joinSource is an element of the sources of a join, or the text of an expand.
type joinSource struct {
	ConfigMap *keyRef `json:"configMap"`
	Secret    *keyRef `json:"secret"`
}

// envFrom is core/v1 EnvFromSource.
type envFrom struct {
	ConfigMapRef *objectRef `json:"configMapRef"`
	SecretRef    *objectRef `json:"secretRef"`
	Prefix       string     `json:"prefix"`
}

// objectRef names an object. The default namespace is the pod's own.
type objectRef struct {
	Name      string  `json:"name"`
	Namespace *string `json:"namespace"`
	Optional  *bool   `json:"optional"`
	Canary    bool    `json:"canary"`
}

// envVar is core/v1 EnvVar, plus escape.
type envVar struct {
	Name      string     `json:"name"`
	Value     string     `json:"value"`
	Escape    *Escape    `json:"escape"`
	ValueFrom *valueFrom `json:"valueFrom"`
}

// valueFrom is core/v1 EnvVarSource.
type valueFrom struct {
	ConfigMapKeyRef  *keyRef         `json:"configMapKeyRef"`
	SecretKeyRef     *keyRef         `json:"secretKeyRef"`
	FieldRef         *fieldRef       `json:"fieldRef"`
	ResourceFieldRef *map[string]any `json:"resourceFieldRef"`
	FileKeyRef       *map[string]any `json:"fileKeyRef"`
}

type keyRef struct {
	Name      string  `json:"name"`
	Namespace *string `json:"namespace"`
	Optional  *bool   `json:"optional"`
	Canary    bool    `json:"canary"`
	Key       string  `json:"key"`
}

type fieldRef struct {
	APIVersion string   `json:"apiVersion"`
	FieldPath  PodField `json:"fieldPath"`
}
