// Package volume is the vocabulary of refvol: what a pod asks for (Spec, parsed
// from the volume attributes), who asks (Pod), what is referenced (Ref), what the
// API server holds (Object) and what a volume shows (Payload).
//
// It owns the syntax of the volume attributes and the validation of paths and
// modes. It is pure: it reads no file, no clock and no network, and it imports no
// other package of this module. It must not know how objects are fetched, written
// or mounted.
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

// DefaultMode is the mode of a file for which nothing names one; it is the mode of the kubelet's own volumes.
const DefaultMode fs.FileMode = 0o644

// The bounds of what one volume's author may ask for. What that comes to in files is
// bounded when they are made, see package payload.
const (
	// MaxAttributesSize is the most bytes that the names and values of one volume's
	// attributes may have together.
	MaxAttributesSize = 64 << 10
	// MaxReferences is how many objects a volume may name, each counted once. A volume is to
	// keep the UID and the resourceVersion of each in an extended attribute, which holds less
	// than 64 KiB: in the order of Spec.Refs, 256 pairs of 60 bytes take a quarter of 60,000
	// bytes. With 170 bytes for the namespace and the name beside each they still fit.
	MaxReferences = 256
	// A shorter spread than minSpread spreads nothing, and a longer one than maxSpread is better a rollout.
	minSpread, maxSpread = time.Second, time.Hour
)

// kubeletPrefix marks the keys of a volume context that the kubelet sets and
// that a pod's author can't, as long as the CSIDriver has podInfoOnMount.
const kubeletPrefix = "csi.storage.k8s.io/"

// Spec is what a pod asks of a volume: the parsed, validated and defaulted form
// of its attributes. It is immutable after Parse.
type Spec struct {
	Sources []Source
	// DefaultMode is the mode of files for which no item names one. Where it is nil, that is
	// the Projection's, and else DefaultMode.
	DefaultMode *fs.FileMode
	// UID and GID own every file and directory where they are not nil.
	UID           *int64
	GID           *int64
	UpdatePolicy  UpdatePolicy
	WriteStrategy WriteStrategy
	OnDelete      DeletePolicy
	// Spread is the length of the windows in which the pods that show an object take up a change, each at a moment of its
	// own; 0: all do so at once.
	Spread time.Duration
	// Directories are made beside the files.
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
	// WriteAtomic switches from one whole generation of files to the next.
	WriteAtomic WriteStrategy = "Atomic"
	// WriteInPlace rewrites the files themselves, so that who has mounted one of them
	// alone (subPath) sees changes. A reader may see half of a change.
	WriteInPlace WriteStrategy = "InPlace"
)

// DeletePolicy says what becomes of the files of a required object that is deleted
// while the volume is mounted.
type DeletePolicy string

// The delete policies.
const (
	// DeleteKeep leaves the last files.
	DeleteKeep DeletePolicy = "Keep"
	// DeleteRemove removes the object's files.
	DeleteRemove DeletePolicy = "Remove"
)

// Pinned says whether the files are never to be rewritten.
func (s *Spec) Pinned() bool { return s.UpdatePolicy == UpdatePinned }

// InPlace says whether the files themselves are rewritten.
func (s *Spec) InPlace() bool { return s.WriteStrategy == WriteInPlace }

// RemoveDeleted says whether the files of a required object go when it is deleted.
func (s *Spec) RemoveDeleted() bool { return s.OnDelete == DeleteRemove }

// Source is one contribution to what a volume shows. Just one of Projection, Env, PodEnv, Join, Expand and
// Versions is set, or Volume.
type Source struct {
	// Projection shows the keys of an object as files. All others show one file.
	Projection *Projection
	// Below is the directory of all files of Projection and Volume; the zero one is the volume itself. The items' paths have it.
	Below Directory
	// Path of the file; clean.
	Path string
	// Mode beats the volume's default mode where it is not nil.
	Mode *fs.FileMode
	// Format is that of Env and PodEnv.
	Format EnvFormat
	// Env shows an env file.
	Env *Env
	// PodEnv shows an env file of variables that the pod's own spec names. pkg/pod resolves it to Env.
	PodEnv *PodEnv
	// Join shows several keys, one after the other.
	Join []Reference
	// Expand shows a text with the values of variables in it.
	Expand *Expand
	// Versions shows a JSON document of all objects that the volume shows.
	Versions bool
	// Volume names one of the pod's own volumes and shows what that names. pkg/pod resolves it to several sources with a
	// Projection and the same Volume.
	Volume string
	// Field is where the pod's author wrote this source, for errors:
	// sources[0].configMap, or configMap for the short form, or for what one of the pod's
	// own volumes names spec.volumes[0].configMap.
	Field string
}

// Projection is one object whose keys a volume shows.
type Projection struct {
	Ref Ref
	// Items maps keys to paths; empty means every key under its own name.
	Items []Item
	// Optional forgives an object or a key that does not exist, and nothing else.
	Optional bool
	// DefaultMode is that of the pod's own volume that names the object; see
	// Spec.DefaultMode.
	DefaultMode *fs.FileMode
	// DefaultUser is that of the same volume: the owner of files for which neither an item nor
	// Spec.UID names one.
	DefaultUser *int64
}

// Item maps one key of an object to a file.
type Item struct {
	Key  string
	Path string
	// Mode beats the default mode where it is not nil.
	Mode *fs.FileMode
	// User is the file's owner where it is not nil, as in KeyToPath of Kubernetes 1.37.
	User *int64
}

// EnvFormat is the syntax of an env file.
type EnvFormat string

// The formats of env files.
const (
	// EnvDotenv is what dotenv parsers read.
	EnvDotenv EnvFormat = "dotenv"
	// EnvShell is what a POSIX shell can source.
	EnvShell EnvFormat = "shell"
)

// PodEnv is the environment of a container of the pod.
type PodEnv struct {
	// Container names an init or regular container.
	Container string
}

// Env says which variables an env file holds: all keys of some objects first, then
// single ones. A later one of the same name wins.
type Env struct {
	From []EnvFrom
	Vars []EnvVar
}

// EnvFrom makes a variable of each key of an object's data.
type EnvFrom struct {
	Prefix string
	Ref    Ref
	// Optional forgives an object that does not exist.
	Optional bool
	// Field is where the author wrote it: sources[0].env.envFrom[1].configMapRef.
	Field string
}

// EnvVar is one variable. A Value that is not empty beats Key, FieldRef and Unknown, of
// which at most one is set.
type EnvVar struct {
	Name string
	// Value may refer to variables that are set before it as $(NAME).
	Value    string
	Key      *Reference
	FieldRef PodField
	// Escape is that of a variable of an Expand; "" is EscapeNone.
	Escape Escape
	// Unknown says that the variable has a value that a volume can't know: it is left
	// out, and so is what was set under its name before.
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
	// EscapeJSON writes what stands between the double quotes of a JSON or YAML string.
	EscapeJSON Escape = "json"
	// EscapeURL writes one component of a URL.
	EscapeURL Escape = "url"
)

// PodField is a field of the pod whose value a publish request tells.
type PodField string

// The fields of a pod that can be the value of a variable.
const (
	PodName           PodField = "metadata.name"
	PodNamespace      PodField = "metadata.namespace"
	PodUID            PodField = "metadata.uid"
	PodNodeName       PodField = "spec.nodeName"
	PodServiceAccount PodField = "spec.serviceAccountName"
)

// PodFields returns every PodField.
func PodFields() []PodField {
	return []PodField{PodName, PodNamespace, PodUID, PodNodeName, PodServiceAccount}
}

// Attributes returns what the pod's author wrote of a volume context: all but the
// keys that come from the kubelet, so also without tokens. The argument is left
// as it is.
func Attributes(volumeContext map[string]string) map[string]string {
	attributes := maps.Clone(volumeContext)
	maps.DeleteFunc(attributes, func(k, _ string) bool { return strings.HasPrefix(k, kubeletPrefix) })
	return attributes
}

// PodFromContext returns the identity of the pod that a volume context belongs to.
// It returns an error with the missing or malformed keys if the context does not
// hold the whole of it, as when the CSIDriver object lacks podInfoOnMount.
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
