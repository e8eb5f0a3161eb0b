package volume

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// The fields that a pod's author writes. docs/attributes.md says what they mean. A raw field is decoded by itself,
// for its errors to have its path: the decoder's own paths have no index of a list. Of an object that decoder.oneOf
// reads, just one of the pointers to raw fields must be given.

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
}

// source is an element of `sources`.
type source struct {
	ConfigMap *json.RawMessage `json:"configMap"`
	Secret    *json.RawMessage `json:"secret"`
	Volume    *json.RawMessage `json:"volume"`
	Env       *json.RawMessage `json:"env"`
	PodEnv    *json.RawMessage `json:"podEnv"`
	Join      *json.RawMessage `json:"join"`
	Versions  *json.RawMessage `json:"versions"`
}

// objectRef names an object. Its namespace is the pod's own where none is given.
type objectRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Optional  bool   `json:"optional"`
}

// projection has the fields of core/v1 ConfigMapProjection and SecretProjection, plus namespace.
type projection struct {
	objectRef
	Items []json.RawMessage `json:"items"`
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

// envFile has what env and podEnv have in common.
type envFile struct {
	Path   string              `json:"path"`
	Mode   *intstr.IntOrString `json:"mode"`
	Format EnvFormat           `json:"format"`
}

type env struct {
	envFile
	EnvFrom []json.RawMessage `json:"envFrom"`
	Env     []json.RawMessage `json:"env"`
}

type podEnv struct {
	envFile
	Container string `json:"container"`
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
	ConfigMap *json.RawMessage `json:"configMap"`
	Secret    *json.RawMessage `json:"secret"`
}

// envFrom is core/v1 EnvFromSource.
type envFrom struct {
	ConfigMapRef *json.RawMessage `json:"configMapRef"`
	SecretRef    *json.RawMessage `json:"secretRef"`
	Prefix       string           `json:"prefix"`
}

// envVar is core/v1 EnvVar.
type envVar struct {
	Name      string           `json:"name"`
	Value     string           `json:"value"`
	ValueFrom *json.RawMessage `json:"valueFrom"`
}

// valueFrom is core/v1 EnvVarSource.
type valueFrom struct {
	ConfigMapKeyRef  *json.RawMessage `json:"configMapKeyRef"`
	SecretKeyRef     *json.RawMessage `json:"secretKeyRef"`
	FieldRef         *json.RawMessage `json:"fieldRef"`
	ResourceFieldRef *json.RawMessage `json:"resourceFieldRef"`
	FileKeyRef       *json.RawMessage `json:"fileKeyRef"`
}

type keyRef struct {
	objectRef
	Key string `json:"key"`
}

type fieldRef struct {
	APIVersion string   `json:"apiVersion"`
	FieldPath  PodField `json:"fieldPath"`
}
