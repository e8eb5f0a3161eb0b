// Package record owns what a mounted volume says about itself, so that the next process of the plugin needs no other state: which versions
// of its objects the files show, and which pod it belongs to. Both are extended attributes, and hold no value of an object.
//
// A container with the node's CAP_SYS_ADMIN can write the attributes of its own volume. So everything is parsed as hostile input: it is
// limited in size, and can only harm that volume. The package must not know about mounts, or what a record is used for.
package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/refvol/refvol/pkg/volume"
)

// Versions has the version of each object that a volume shows. It has no entry for an object that does not exist: see Set.
type Versions map[volume.Ref]volume.Version

// Set sets the version of an object. The zero Version means that the object does not exist.
func (v Versions) Set(ref volume.Ref, version volume.Version) {
	if version == (volume.Version{}) {
		delete(v, ref)
		return
	}
	v[ref] = version
}

// Record says what a volume shows of its objects.
type Record struct {
	// Shown are the versions in the files. Absent are the canaries that don't exist for the pod, at the version that says so. An older answer
	// must not show them again.
	Shown, Absent Versions
}

// IsEqual reports whether two records say the same.
func (r Record) IsEqual(other Record) bool {
	return maps.Equal(r.Shown, other.Shown) && maps.Equal(r.Absent, other.Absent)
}

// Without returns a record that lacks some objects.
func (r Record) Without(refs map[volume.Ref]bool) Record {
	left := Record{maps.Clone(r.Shown), maps.Clone(r.Absent)}
	for ref := range refs {
		delete(left.Shown, ref)
		delete(left.Absent, ref)
	}
	return left
}

// absent is the last field of the line of an absent canary. Earlier releases ignore such a line.
const absent = "absent"

// Encode returns the text of a record: a line for each object that exists, with a digest of the reference, the UID and the resourceVersion.
// With volume.MaxReferences objects it has at most 22,000 bytes, because the digest replaces names of up to 325 bytes.
func (r Record) Encode() string {
	var lines []string
	for ref, version := range r.Shown {
		lines = append(lines, fmt.Sprintf("%s %s %s\n", digest(ref), version.UID, version.ResourceVersion))
	}
	for ref, version := range r.Absent {
		lines = append(lines, fmt.Sprintf("%s %s %s %s\n", digest(ref), version.UID, version.ResourceVersion, absent))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// Decode returns what a record says about refs. It ignores other objects and lines of another form.
func Decode(text string, refs []volume.Ref) Record {
	named := make(map[string]volume.Ref, len(refs))
	for _, ref := range refs {
		named[digest(ref)] = ref
	}
	r := Record{Versions{}, Versions{}}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		ref, isNamed := named[fields[0]]
		version := volume.Version{UID: types.UID(fields[1]), ResourceVersion: fields[2]}
		switch {
		case !isNamed:
		case len(fields) == 3:
			r.Shown[ref] = version
		case len(fields) == 4 && fields[3] == absent:
			r.Absent[ref] = version
		}
	}
	return r
}

// digestSize is the number of bytes of a reference's SHA-256 that are used.
const digestSize = 8

func digest(ref volume.Ref) string {
	sum := sha256.Sum256([]byte(string(ref.Kind) + "/" + ref.Namespace + "/" + ref.Name))
	return hex.EncodeToString(sum[:digestSize])
}

// podAttribute, after the prefix, is the name of the root directory's attribute that names the pod.
const podAttribute = "pod"

// maxPod is the longest value of that attribute in bytes: a namespace, a slash and a name.
const maxPod = 63 + 1 + 253

// errNoPod says that a volume does not name its pod.
var errNoPod = errors.New("the root directory names no pod")

// SetPod stores the pod's namespace and name in the root directory of a volume. prefix is the prefix of attribute names, such as
// "trusted.refvol.".
func SetPod(dir *os.Root, prefix string, pod volume.Pod) error {
	return onRoot(dir, func(fd int) error {
		if err := unix.Fsetxattr(fd, prefix+podAttribute, []byte(pod.String()), 0); err != nil {
			return fmt.Errorf("set attribute %s%s: %w", prefix, podAttribute, err)
		}
		return nil
	})
}

// Pod returns the namespace and the name that SetPod stored. They are a hint: only the pod's UID proves that the volume belongs to it.
func Pod(dir *os.Root, prefix string) (namespace, name string, err error) {
	err = onRoot(dir, func(fd int) error {
		var buf [maxPod]byte
		n, err := unix.Fgetxattr(fd, prefix+podAttribute, buf[:])
		if err != nil {
			return fmt.Errorf("%w: read attribute %s%s: %w", errNoPod, prefix, podAttribute, err)
		}
		var found bool
		namespace, name, found = strings.Cut(string(buf[:n]), "/")
		if !found || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return errNoPod
		}
		return nil
	})
	if err != nil {
		return "", "", err
	}
	return namespace, name, nil
}

// onRoot calls do with a descriptor of dir itself.
func onRoot(dir *os.Root, do func(fd int) error) error {
	root, err := dir.OpenFile(".", unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open the volume's root: %w", err)
	}
	defer root.Close()
	return do(int(root.Fd()))
}
