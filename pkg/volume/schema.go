package volume

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// The fields that a pod's author writes. docs/attributes.md says what they mean. The elements of a list are raw: each is
// decoded by itself, for its errors to have its index. Of the pointers to structs in an object that decoder.oneOf checks,
// just one must be given.

// attributes are all that a volume takes. Each value is a string.
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
	Directories   *string       `json:"directories"`
}

// source is an element of `sources`.
type source struct {
	ConfigMap *projection `json:"configMap"`
	Secret    *projection `json:"secret"`
	Volume    *podVolume  `json:"volume"`
	Env       *env        `json:"env"`
	PodEnv    *podEnv     `json:"podEnv"`
	Join      *join       `json:"join"`
	Versions  *versions   `json:"versions"`
}

// projection has the fields of core/v1 ConfigMapProjection and SecretProjection, plus namespace.
type projection struct {
	Name      string            `json:"name"`
	Namespace *string           `json:"namespace"`
	Optional  bool              `json:"optional"`
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
	Name string `json:"name"`
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

type versions struct {
	Path string              `json:"path"`
	Mode *intstr.IntOrString `json:"mode"`
}

// joinSource is an element of `sources` of a join.
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

// objectRef names an object. Its namespace is the pod's own where none is given.
type objectRef struct {
	Name      string  `json:"name"`
	Namespace *string `json:"namespace"`
	Optional  bool    `json:"optional"`
}

// envVar is core/v1 EnvVar.
type envVar struct {
	Name      string     `json:"name"`
	Value     string     `json:"value"`
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
	Optional  bool    `json:"optional"`
	Key       string  `json:"key"`
}

type fieldRef struct {
	APIVersion string   `json:"apiVersion"`
	FieldPath  PodField `json:"fieldPath"`
}
