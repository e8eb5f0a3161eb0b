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

// Kinds returns every Kind.
func Kinds() []Kind { return []Kind{ConfigMap, Secret} }

// Resource returns the name of the kind's resource in the API group core/v1.
func (k Kind) Resource() string { return strings.ToLower(string(k)) + "s" }

// Ref names one object in the API server. It is comparable, so it serves as a
// map key.
type Ref struct {
	Kind      Kind
	Namespace string
	Name      string
}

// String returns the form that errors and logs use: ConfigMap "ns/name".
func (r Ref) String() string {
	return fmt.Sprintf("%s %q", r.Kind, r.Namespace+"/"+r.Name)
}

// CompareRefs orders refs by kind, namespace and name.
func CompareRefs(a, b Ref) int {
	return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// Pod identifies the pod that a volume belongs to, as the kubelet told it in the
// publish request (podInfoOnMount).
type Pod struct {
	Namespace      string
	Name           string
	UID            types.UID
	ServiceAccount string
}

// String returns namespace/name, without the UID.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Version is what of an object's identity decides whether files are current: the
// UID tells a recreated object from an updated one, the resourceVersion orders
// the states of one UID. The zero Version stands for an object that is absent.
type Version struct {
	UID             types.UID
	ResourceVersion string
}

// RolloutAnnotation is the annotation of an object that says which share of the pods may take a newer version than they show.
const RolloutAnnotation = "refvol.dev/rollout"

// Object is a snapshot of a ConfigMap or a Secret with nothing of it kept but what
// a volume can show. It is immutable by convention: whoever holds one must not
// write to its maps, so it may be shared between goroutines. Formatting or
// marshalling an Object never shows a value, with one exception that is the
// language's: fmt calls no method of what an unexported field holds, so such a
// field must hold a pointer to an Object, which prints as an address.
type Object struct {
	Ref
	Version
	// Immutable is the object's own promise that its data never changes.
	Immutable bool
	// Rollout is the object's annotation RolloutAnnotation as it stands there, "" for none. Its beginning is enough of one that
	// is long: it can't be valid.
	Rollout string
	// Data holds `data` of both kinds. It and BinaryData are kept out of JSON by their
	// tags too, for types whose own methods hide MarshalJSON.
	Data map[string][]byte `json:"-"`
	// BinaryData holds `binaryData` of a ConfigMap; the API server refuses a key
	// that is in both.
	BinaryData map[string][]byte `json:"-"`
}

// Value returns the bytes under key, from Data or BinaryData, and whether the
// object has the key. The result must not be written to.
func (o *Object) Value(key string) ([]byte, bool) {
	if v, ok := o.Data[key]; ok {
		return v, true
	}
	v, ok := o.BinaryData[key]
	return v, ok
}

// String names the object and its version and never shows a value.
func (o Object) String() string {
	return fmt.Sprintf("%s at %s (%d keys)", o.Ref, o.ResourceVersion, len(o.Data)+len(o.BinaryData))
}

// Format keeps values out of every verb.
func (o Object) Format(f fmt.State, _ rune) { fmt.Fprint(f, o.String()) }

// MarshalJSON keeps values out of JSON, so also out of structured logs.
func (o Object) MarshalJSON() ([]byte, error) { return json.Marshal(o.String()) }

// File is one file that a volume shows. Formatting or marshalling a File never
// shows its content, as far as that holds for an Object.
type File struct {
	// Path is relative to the volume's root, clean and slash-separated.
	Path string
	// Data is the content; it must not be written to.
	Data []byte `json:"-"`
	// Mode holds permission bits only.
	Mode fs.FileMode
	// User owns the file in the place of Payload.UID where it is not nil.
	User *int64
	// Refs names the objects that the file was made of: without a right to all of them, the file
	// must go. It is sorted by CompareRefs, and no object repeats.
	Refs []Ref
	// Keep stands for the file that the volume shows at Path now, which must be there. Of the rest of the File only Refs and
	// Size count then: for the room, and for who opened it.
	Keep bool
	// Size is the length of a file that is kept, in bytes.
	Size int64
}

// String names the file, its size and its mode, and never shows its content.
func (f File) String() string {
	return fmt.Sprintf("%s (%d bytes, %04o)", f.Path, len(f.Data), f.Mode.Perm())
}

// Format keeps the content out of every verb.
func (f File) Format(s fmt.State, _ rune) { fmt.Fprint(s, f.String()) }

// MarshalJSON keeps the content out of JSON, so also out of structured logs.
func (f File) MarshalJSON() ([]byte, error) { return json.Marshal(f.String()) }

// NoOwner in Payload.UID or Payload.GID leaves the owner or group as the file system
// made it.
const NoOwner = -1

// Payload is all that a volume shows at one moment. The zero UID and GID are root's;
// use NoOwner to leave them alone.
type Payload struct {
	// Files is sorted by Path; no path repeats, and none is a directory of another.
	Files []File
	// DirMode is the mode of every directory, with fs.ModeSetgid where wanted.
	DirMode fs.FileMode
	// UID and GID own every file and directory, links left out. File.User beats UID.
	UID, GID int
	// Directories are empty directories in the volume's root, for mounts: sorted, and none begins as a file does. They stay
	// as long as the volume.
	Directories []string
	// Inner are empty directories for mounts in directories of files: sorted. Only a volume that is written in place can
	// have them.
	Inner []string
	// Record is what the volume keeps beside the files for its next owner, "" for nothing.
	// It holds no value of an object.
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
