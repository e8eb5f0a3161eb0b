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

// CheckUser returns why n can't be a user's id, nil if it can.
func CheckUser(n int64) error {
	if problems := validation.IsValidUserID(n); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// checkCollisions reports explicit paths that conflict: two that are equal, and a file where another path
// needs a directory. Paths that come from keys without items are left out: there a later source wins. So are
// empty paths: those items were refused already.
func (s *Spec) checkCollisions() field.ErrorList {
	var errs field.ErrorList
	taken := NewPaths()
	for i := range s.Sources {
		for at, path := range s.Sources[i].paths() {
			if path == "" {
				continue
			}
			if reason := taken.collision(path); reason != "" {
				errs = append(errs, field.Invalid(at.field(), shorten(path), reason))
				continue
			}
			taken.add(at, path)
		}
	}
	return errs
}

// paths yields the paths that the pod's author gave in a source, each with its
// place. One that was refused is empty.
func (s *Source) paths() iter.Seq2[pathPlace, string] {
	return func(yield func(pathPlace, string) bool) {
		switch {
		case s.Projection != nil:
			for i := range s.Projection.Items {
				if !yield(pathPlace{s, i}, s.Projection.Items[i].Path) {
					return
				}
			}
		case s.Env != nil:
			yield(pathPlace{s, 0}, s.Env.Path)
		case s.PodEnv != nil:
			yield(pathPlace{s, 0}, s.PodEnv.Path)
		case s.Join != nil:
			yield(pathPlace{s, 0}, s.Join.Path)
		case s.Versions != nil:
			yield(pathPlace{s, 0}, s.Versions.Path)
		}
	}
}

// pathPlace is the place of a path: a source, and for a projection the index of an item. Its field is
// made for an error only, as there may be thousands of paths.
type pathPlace struct {
	source *Source
	item   int
}

func (p pathPlace) field() *field.Path {
	if p.source.Projection != nil {
		return p.source.itemPath(p.item).Child("path")
	}
	return field.NewPath(p.source.Field).Child("path")
}

// Paths holds the paths that the pod's author gave to files, each with its place.
type Paths struct {
	files map[string]pathPlace
	// directories holds the first place that needs each directory.
	directories map[string]pathPlace
}

// NewPaths returns a Paths that holds none.
func NewPaths() Paths {
	return Paths{files: map[string]pathPlace{}, directories: map[string]pathPlace{}}
}

// Check returns an error for the first path of a source that conflicts with one of t. Paths of the source may
// conflict with each other.
func (t Paths) Check(s *Source) *field.Error {
	if len(t.files) == 0 {
		return nil
	}
	for at, path := range s.paths() {
		if reason := t.collision(path); reason != "" {
			return field.Invalid(at.field(), shorten(path), reason)
		}
	}
	return nil
}

// Add adds the paths of a source.
func (t Paths) Add(s *Source) {
	for at, path := range s.paths() {
		t.add(at, path)
	}
}

// add adds the path of a file, with its directories.
func (t Paths) add(at pathPlace, p string) {
	t.files[p] = at
	for dir := parent(p); dir != "" && t.directories[dir].source == nil; dir = parent(dir) {
		t.directories[dir] = at
	}
}

// collision says why a path conflicts with those of t, "" if it does not.
func (t Paths) collision(p string) string {
	if other, ok := t.files[p]; ok {
		return "conflicting duplicate paths: also the path of " + other.field().String()
	}
	if other, ok := t.directories[p]; ok {
		return "must not be a file: " + other.field().String() + " needs a directory of that name"
	}
	for dir := parent(p); dir != ""; dir = parent(dir) {
		if other, ok := t.files[dir]; ok {
			return fmt.Sprintf("must not lie below %q, which %s makes a file", shorten(dir), other.field())
		}
	}
	return ""
}

// parent returns the directory of a clean path, "" for the volume's root.
func parent(p string) string { return p[:max(0, strings.LastIndexByte(p, '/'))] }

// itemPath returns the field path of item i of a source. The short form has its
// items beside the object's name, a source in a list has them below it.
func (s *Source) itemPath(i int) *field.Path {
	if strings.Contains(s.Field, ".") {
		return field.NewPath(s.Field).Child("items").Index(i)
	}
	return field.NewPath("items").Index(i)
}

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
