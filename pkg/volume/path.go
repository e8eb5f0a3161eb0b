package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of a path inside a volume; they are the kernel's PATH_MAX and NAME_MAX,
// and the kubelet applies the same to its own volumes.
const (
	maxPathLength    = 4096
	maxElementLength = 255
)

// CleanPath validates a path that a file is to have inside a volume and returns its clean form; as in the kubelet's
// own volumes, that has no slash at its end. The error says what is wrong and does not repeat the path.
func CleanPath(p string) (string, error) {
	clean, elements := path.Clean(p), strings.Split(p, "/")
	var problem string
	switch {
	case p == "":
		problem = "must not be empty"
	case len(p) > maxPathLength:
		problem = fmt.Sprintf("must have at most %d bytes", maxPathLength)
	case strings.ContainsRune(p, 0):
		problem = "must not contain a NUL byte"
	case slices.Contains(elements, ".."):
		problem = `must not contain ".."`
	case path.IsAbs(p):
		problem = "must be relative"
	case slices.ContainsFunc(elements, func(element string) bool { return len(element) > maxElementLength }):
		problem = fmt.Sprintf("each element must have at most %d bytes", maxElementLength)
	case clean == ".":
		problem = "must name a file, not the volume itself"
	case strings.HasPrefix(clean, ".."): // names of the writer's own: ..data and the generations
		problem = `must not start with ".."`
	default:
		return clean, nil
	}
	return "", errors.New(problem)
}

// ParseMode reads the octal string form of a file mode: a leading zero and at most
// 0777.
func ParseMode(s string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 || len(s) < 2 || len(s) > 5 || s[0] != '0' {
		return 0, fmt.Errorf("must be an octal number with a leading zero, from %q to %q", "0000", "0777")
	}
	return fs.FileMode(n), nil
}

// CheckMode returns why n can't be a file's mode, nil if it can.
func CheckMode(n int32) error {
	if n < 0 || n > 0o777 {
		return errors.New("must be an integer from 0 to 511 (octal 0777)")
	}
	return nil
}

// CheckUser returns why n can't be a user's id, nil if it can.
func CheckUser(n int64) error {
	if problems := validation.IsValidUserID(n); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// Validate refuses what does not fit together: too many objects, and paths that conflict, which are two that are equal,
// and a file where another needs a directory. Paths that come from keys without items are left out: there a later source
// wins. So does a later path within one of the pod's own volumes, as for the kubelet.
func (s *Spec) Validate() error {
	var d decoder
	if uses := s.objects(); len(uses) > MaxReferences {
		err := field.TooMany(field.NewPath(uses[MaxReferences].Field), len(uses), 0)
		err.Detail = fmt.Sprintf("a volume may name at most %d ConfigMaps and Secrets, each counted once; show the others in another volume", MaxReferences)
		d.add(err)
	}
	taken := paths{files: map[string]place{}, directories: map[string]place{}}
	for i := range s.Sources {
		for at, path := range s.Sources[i].paths() {
			if reason := taken.add(at, path); reason != "" {
				d.add(field.Invalid(at.field(), shorten(path), reason))
			}
		}
	}
	return d.err()
}

// paths yields the paths that the pod's author gave in a source, each with its place.
func (s *Source) paths() iter.Seq2[place, string] {
	return func(yield func(place, string) bool) {
		if s.Path != "" && !yield(place{s, 0}, s.Path) || s.Projection == nil {
			return
		}
		for i := range s.Projection.Items {
			if !yield(place{s, i}, s.Projection.Items[i].Path) {
				return
			}
		}
	}
}

// place is the place of a path: a source, and for a projection the index of an item. Its field is
// made for an error only, as there may be thousands of paths.
type place struct {
	source *Source
	item   int
}

func (p place) field() *field.Path {
	at := field.NewPath(p.source.Field)
	switch {
	case p.source.Projection == nil:
		return at.Child("path")
	case !strings.Contains(p.source.Field, "."): // the short form has its items beside the object's name
		at = nil
	}
	return at.Child(attrItems).Index(p.item).Child("path")
}

// paths holds the paths of files, each with its place.
type paths struct {
	files map[string]place
	// directories holds the first place that needs each directory.
	directories map[string]place
}

// add adds the path of a file, with its directories. It says why if the path conflicts with those before.
func (t paths) add(at place, p string) (reason string) {
	conflicts := func(other place, found bool) bool {
		return found && (at.source.Volume == "" || other.source.Volume != at.source.Volume)
	}
	other, found := t.files[p]
	if conflicts(other, found) {
		return "conflicting duplicate paths: also the path of " + other.field().String()
	}
	other, found = t.directories[p]
	if conflicts(other, found) {
		return "must not be a file: " + other.field().String() + " needs a directory of that name"
	}
	for dir := parent(p); dir != ""; dir = parent(dir) {
		other, found = t.files[dir]
		if conflicts(other, found) {
			return fmt.Sprintf("must not lie below %q, which %s makes a file", shorten(dir), other.field())
		}
	}
	t.files[p] = at
	for dir := parent(p); dir != "" && t.directories[dir].source == nil; dir = parent(dir) {
		t.directories[dir] = at
	}
	return ""
}

// parent returns the directory of a clean path, "" for the volume's root.
func parent(p string) string { return p[:max(0, strings.LastIndexByte(p, '/'))] }

// fieldName returns what a pod's author gave as the name of a field in a form that
// fits a field path: whole where it could be a name, else quoted.
func fieldName(name string) string {
	quoted := strconv.Quote(shorten(name))
	if name == "" || quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// shorten returns at most 64 bytes of a value for an error text.
func shorten(v string) string {
	const most = 64
	if len(v) <= most {
		return v
	}
	return strings.ToValidUTF8(v[:most], "") + fmt.Sprintf("... (%d bytes)", len(v))
}
