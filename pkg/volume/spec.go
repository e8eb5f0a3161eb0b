// Package volume has the basic types of refvol: what a pod asks for (Spec, parsed from the volume attributes), who asks (Pod), what is
// referenced (Ref), what the API server holds (Object), and what a volume shows (Payload).
//
// It owns the syntax of the volume attributes and the validation of paths and modes. It is pure: it reads no file, clock or network, and
// imports no other package of this module. It must not know how objects are fetched, written or mounted.
package volume

import (
	"io/fs"
	"maps"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DefaultMode is the mode of a file if nothing else sets one. It is the default of the kubelet's own volumes.
const DefaultMode fs.FileMode = 0o644

// The limits of what the author of a volume may ask for. Package payload limits the files.
const (
	// MaxAttributesSize limits the names and values of a volume's attributes together, in bytes.
	MaxAttributesSize = 64 << 10
	// MaxReferences limits the objects that a volume may name, each counted once. The UID and the resourceVersion of each object are kept
	// in an extended attribute, which holds less than 64 KiB. 256 pairs of 60 bytes need a quarter of 60,000 bytes. With 170 bytes more for
	// each object's namespace and name they still fit.
	MaxReferences = 256
	// A spread below minSpread has no effect, and instead of one above maxSpread a rollout is better.
	minSpread, maxSpread = time.Second, time.Hour
)

// kubeletPrefix is the prefix of the keys of a volume context that the kubelet sets. A pod's author cannot set them if the CSIDriver has
// podInfoOnMount.
const kubeletPrefix = "csi.storage.k8s.io/"

// Spec is what a pod asks of a volume: the parsed and validated attributes with defaults. It must not be changed after Parse.
type Spec struct {
	Sources []Source
	// DefaultMode is the mode of files for which no item sets one. If it is nil, the Projection's DefaultMode is used, or else the constant
	// DefaultMode.
	DefaultMode *fs.FileMode
	// UID and GID own every file and directory, if they are not nil.
	UID           *int64
	GID           *int64
	UpdatePolicy  UpdatePolicy
	WriteStrategy WriteStrategy
	OnDelete      DeletePolicy
	// Spread is the length of the windows in which pods take a change, each at its own moment. 0 means that all take it at once.
	Spread time.Duration
	// SameRevision means that the volume takes its objects only together, and only if all of them carry the same RevisionAnnotation.
	SameRevision bool
	// Directories are made in addition to the files.
	Directories []Directory
}

// UpdatePolicy says whether a volume follows its objects.
type UpdatePolicy string

// The update policies.
const (
	// UpdateLive keeps the files current.
	UpdateLive UpdatePolicy = "Live"
	// UpdatePinned writes the files once and never again.
	UpdatePinned UpdatePolicy = "Pinned"
)

// WriteStrategy says how changed files get into a volume.
type WriteStrategy string

// The write strategies.
const (
	// WriteAtomic switches from one complete generation of files to the next.
	WriteAtomic WriteStrategy = "Atomic"
	// WriteInPlace rewrites the files themselves, so that a container that has mounted a single file (subPath) sees changes. A reader may
	// see a half-written change.
	WriteInPlace WriteStrategy = "InPlace"
)

// DeletePolicy says what happens to the files of a required object that is deleted while the volume is mounted.
type DeletePolicy string

// The delete policies.
const (
	// DeleteKeep keeps the last files.
	DeleteKeep DeletePolicy = "Keep"
	// DeleteRemove removes the object's files.
	DeleteRemove DeletePolicy = "Remove"
)

// Pinned reports whether the files are never rewritten.
func (s *Spec) Pinned() bool { return s.UpdatePolicy == UpdatePinned }

// InPlace reports whether the files themselves are rewritten.
func (s *Spec) InPlace() bool { return s.WriteStrategy == WriteInPlace }

// RemoveDeleted reports whether the files of a required object are removed when it is deleted.
func (s *Spec) RemoveDeleted() bool { return s.OnDelete == DeleteRemove }

// Source is one source of a volume's files. Exactly one of Projection, Env, PodEnv, Join, Expand, Versions and Volume is set. Only a
// resolved volume source has both Projection and Volume.
type Source struct {
	// Projection shows the keys of an object as files. The other types, except Volume, show one file.
	Projection *Projection
	// Below is the directory for all files of Projection and Volume. The zero Directory is the volume's root. The paths of items include
	// it.
	Below Directory
	// Path is the clean path of the file.
	Path string
	// Mode, if not nil, replaces the volume's default mode.
	Mode *fs.FileMode
	// Format is the format of Env and PodEnv.
	Format EnvFormat
	// Env shows an env file.
	Env *Env
	// PodEnv shows an env file of variables in the pod's own spec. Package pod resolves it to Env.
	PodEnv *PodEnv
	// Join shows several keys in one file, in order.
	Join []Reference
	// Expand shows a text with the values of variables in it.
	Expand *Expand
	// Versions shows a JSON document of all objects that the volume shows.
	Versions bool
	// Volume names one of the pod's own volumes, whose objects are shown. Package pod resolves it to several sources with a Projection and
	// the same Volume.
	Volume string
	// Field is the field in which the pod's author wrote this source, for errors: sources[0].configMap; configMap for the short form;
	// spec.volumes[0].configMap for a source of one of the pod's own volumes.
	Field string
}

// Projection is one object whose keys a volume shows.
type Projection struct {
	Ref Ref
	// Items maps keys to paths. If it is empty, every key is shown under its own name.
	Items []Item
	// Optional means that the object or a key may be missing. It never forgives a refusal.
	Optional bool
	// Canary means that the object exists only for the pods in its share. It is then Optional, and the source follows all others without it.
	Canary bool
	// DefaultMode is that of the pod's own volume that names the object; see Spec.DefaultMode.
	DefaultMode *fs.FileMode
	// DefaultUser is that of the same volume: the owner of files for which neither an item nor Spec.UID sets one.
	DefaultUser *int64
}

// Item maps one key of an object to a file.
type Item struct {
	Key  string
	Path string
	// Mode, if not nil, replaces the default mode.
	Mode *fs.FileMode
	// User, if not nil, owns the file, as in KeyToPath of Kubernetes 1.37.
	User *int64
}

// EnvFormat is the syntax of an env file.
type EnvFormat string

// The formats of env files.
const (
	// EnvDotenv can be read by dotenv parsers.
	EnvDotenv EnvFormat = "dotenv"
	// EnvShell can be sourced by a POSIX shell.
	EnvShell EnvFormat = "shell"
	// EnvEnviron is the format of /proc/PID/environ. It holds all names and values that an environment can hold.
	EnvEnviron EnvFormat = "environ"
)

// PodEnv refers to the environment of one of the pod's containers.
type PodEnv struct {
	// Container names an init or regular container.
	Container string
}

// Env says which variables an env file holds: first all keys of some objects, then single variables. A later variable of the same name
// wins.
type Env struct {
	From []EnvFrom
	Vars []EnvVar
}

// EnvFrom makes a variable of each key of an object's data.
type EnvFrom struct {
	Prefix string
	Ref    Ref
	// Optional means that the object may be missing. Canary is that of Projection. Its variables win over those without it.
	Optional, Canary bool
	// Field is the field in which the author wrote it: sources[0].env.envFrom[1].configMapRef.
	Field string
}

// EnvVar is one variable. At most one of Key, FieldRef and Unknown is set. A Value that is not empty wins over them.
type EnvVar struct {
	Name string
	// Value may refer to variables that are set before it, as $(NAME).
	Value    string
	Key      *Reference
	FieldRef PodField
	// Escape is that of a variable of an Expand. "" means EscapeNone.
	Escape Escape
	// Unknown means that a volume cannot know the variable's value. The variable is left out, and an earlier one of the same name too.
	Unknown bool
}

// Expand is a text in which $(NAME) stands for the value of a variable.
type Expand struct {
	Text Reference
	// Env has the variables.
	Env Env
}

// Escape says how a value is written into a text.
type Escape string

// The escapes.
const (
	// EscapeNone writes a value as it is.
	EscapeNone Escape = "none"
	// EscapeJSON writes the value for a place between the double quotes of a JSON or YAML string.
	EscapeJSON Escape = "json"
	// EscapeURL writes the value as one component of a URL.
	EscapeURL Escape = "url"
)

// PodField is a field of the pod whose value is known from a publish request or the plugin's options.
type PodField string

// The fields of a pod that can be the value of a variable.
const (
	PodName           PodField = "metadata.name"
	PodNamespace      PodField = "metadata.namespace"
	PodUID            PodField = "metadata.uid"
	PodNodeName       PodField = "spec.nodeName"
	PodServiceAccount PodField = "spec.serviceAccountName"
)

// PodFields returns all pod fields.
func PodFields() []PodField {
	return []PodField{PodName, PodNamespace, PodUID, PodNodeName, PodServiceAccount}
}

// Attributes returns the part of a volume context that the pod's author wrote: everything except the kubelet's keys, and so without tokens.
// It does not change its argument.
func Attributes(volumeContext map[string]string) map[string]string {
	attributes := maps.Clone(volumeContext)
	maps.DeleteFunc(attributes, func(k, _ string) bool { return strings.HasPrefix(k, kubeletPrefix) })
	return attributes
}

// PodFromContext returns the pod that a volume context belongs to. If the context does not identify a pod completely, for example because
// the CSIDriver object lacks podInfoOnMount, the error lists the missing or malformed keys.
func PodFromContext(volumeContext map[string]string) (Pod, error) {
	var errs field.ErrorList
	get := func(key string) string {
		key = kubeletPrefix + key
		at, v := field.NewPath("volume_context").Key(key), volumeContext[key]
		switch {
		case v == "":
			errs = append(errs, field.Required(at, "the CSIDriver object must have podInfoOnMount: true"))
		case strings.ContainsAny(v, "/\x00") || v == "." || v == "..":
			errs = append(errs, field.Invalid(at, shorten(v), "must be a single path element"))
		case strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) }):
			errs = append(errs, field.Invalid(at, shorten(v), "must not contain characters that can't be printed"))
		}
		return v
	}
	pod := Pod{
		Namespace:      get("pod.namespace"),
		Name:           get("pod.name"),
		UID:            types.UID(get("pod.uid")),
		ServiceAccount: get("serviceAccount.name"),
	}
	if len(errs) > 0 {
		return Pod{}, errs.ToAggregate()
	}
	return pod, nil
}
