package volume

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Kind is the kind of a referenced object, spelled as in its manifest.
type Kind string

// The kinds that a volume can reference.
const (
	ConfigMap Kind = "ConfigMap"
	Secret    Kind = "Secret"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{ConfigMap, Secret} }

// Resource returns the name of the kind's resource in the API group core/v1.
func (k Kind) Resource() string { return strings.ToLower(string(k)) + "s" }

// Ref names one object in the API server. It is comparable and can be a map key.
type Ref struct {
	Kind      Kind
	Namespace string
	Name      string
}

// String returns the form for errors and logs: ConfigMap "ns/name".
func (r Ref) String() string {
	return fmt.Sprintf("%s %q", r.Kind, r.Namespace+"/"+r.Name)
}

// CompareRefs orders refs by kind, namespace and name.
func CompareRefs(a, b Ref) int {
	return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// Pod identifies the pod that a volume belongs to, as the kubelet names it in the publish request (podInfoOnMount).
type Pod struct {
	Namespace      string
	Name           string
	UID            types.UID
	ServiceAccount string
}

// String returns namespace/name, without the UID.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Version identifies the state of an object. The UID distinguishes a recreated object from an updated one. The resourceVersion orders the
// states of one UID. The zero Version stands for an object that does not exist.
type Version struct {
	UID             types.UID
	ResourceVersion string
}

// The annotations of objects.
const (
	// RolloutAnnotation says which share of the pods may take a newer version than the one they show.
	RolloutAnnotation = "refvol.dev/rollout"
	// RevisionAnnotation names the revision to which an object's data belong, such as a commit. See Revision.
	RevisionAnnotation = "refvol.dev/revision"
	// CanaryAnnotation says for which share of the pods an object exists that their volumes name as a canary. See Object.CanaryShare.
	CanaryAnnotation = "refvol.dev/canary"
)

// Object is a snapshot of a ConfigMap or a Secret, reduced to what a volume can show. It must not be changed, so goroutines may share it.
// Formatting or marshalling an Object never shows a value, with one exception of the language: fmt calls no methods on values in unexported
// fields. Such a field must hold a pointer to an Object, which is printed as an address.
type Object struct {
	Ref
	Version
	// Immutable is the object's field immutable: its data never changes.
	Immutable bool
	// Rollout, Revision and Canary are the values of the object's annotations, or "". A long value is cut off, because it cannot be valid.
	Rollout  string
	Revision Revision
	Canary   string
	// Data has the field data of both kinds. The tags keep it and BinaryData out of JSON, also for types whose own methods hide
	// MarshalJSON.
	Data map[string][]byte `json:"-"`
	// BinaryData has the field binaryData of a ConfigMap. The API server refuses a key that is in both.
	BinaryData map[string][]byte `json:"-"`
}

// Value returns the value of a key, from Data or BinaryData, and whether the object has the key. The caller must not change it.
func (o *Object) Value(key string) ([]byte, bool) {
	if v, ok := o.Data[key]; ok {
		return v, true
	}
	v, ok := o.BinaryData[key]
	return v, ok
}

// String names the object and its version, and shows no value.
func (o Object) String() string {
	return fmt.Sprintf("%s at %s (%d keys)", o.Ref, o.ResourceVersion, len(o.Data)+len(o.BinaryData))
}

// Format shows no values, for every verb.
func (o Object) Format(f fmt.State, _ rune) { fmt.Fprint(f, o.String()) }

// MarshalJSON shows no values in JSON, and so also not in structured logs.
func (o Object) MarshalJSON() ([]byte, error) { return json.Marshal(o.String()) }

// File is one file that a volume shows. Formatting or marshalling a File never shows its content, with the same exception as for an Object.
type File struct {
	// Path is relative to the volume's root, clean and slash-separated.
	Path string
	// Data is the content. It must not be changed.
	Data []byte `json:"-"`
	// Mode has permission bits only.
	Mode fs.FileMode
	// User, if not nil, owns the file instead of Payload.UID.
	User *int64
	// Refs names the objects of which the file was made. Without a right to all of them, the file must be removed. It is sorted by
	// CompareRefs and has no duplicates.
	Refs []Ref
	// Keep means that the file that the volume shows at Path now stays as it is. It must exist. Only Refs and Size of this File are then
	// used, for limits and receipts.
	Keep bool
	// Size is the length of a kept file in bytes.
	Size int64
}

// String names the file, its size and its mode, and does not show its content.
func (f File) String() string {
	return fmt.Sprintf("%s (%d bytes, %04o)", f.Path, len(f.Data), f.Mode.Perm())
}

// Format does not show the content, for every verb.
func (f File) Format(s fmt.State, _ rune) { fmt.Fprint(s, f.String()) }

// MarshalJSON does not show the content in JSON, and so also not in structured logs.
func (f File) MarshalJSON() ([]byte, error) { return json.Marshal(f.String()) }

// NoOwner in Payload.UID or Payload.GID means that the owner or group is not set.
const NoOwner = -1

// Payload is everything that a volume shows at one moment. The zero UID and GID are root's. NoOwner leaves them unchanged.
type Payload struct {
	// Files is sorted by Path. No path repeats, and none is a directory of another.
	Files []File
	// DirMode is the mode of every directory: permission bits and fs.ModeSetgid.
	DirMode fs.FileMode
	// UID and GID own every file and directory, but not links. File.User wins over UID.
	UID, GID int
	// Directories are empty directories in the volume's root, for mounts. They are sorted, and no file's path starts with the first element
	// of one. They stay as long as the volume.
	Directories []string
	// Inner are empty directories for mounts inside directories of files, sorted. Only a volume that is written in place can have them.
	Inner []string
	// Record is stored in the volume for the next process, or "". It holds no value of an object.
	Record string
}

// Size returns the sum of the contents' lengths in bytes.
func (t *Payload) Size() int64 {
	var n int64
	for i := range t.Files {
		n += int64(len(t.Files[i].Data))
	}
	return n
}
