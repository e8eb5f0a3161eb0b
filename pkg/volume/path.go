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

// The limits of a path inside a volume. They are the kernel's PATH_MAX and NAME_MAX, and the kubelet has the same for its own volumes.
const (
	maxPathLength    = 4096
	maxElementLength = 255
	maxKeyLength     = validation.DNS1123SubdomainMaxLength
)

// CleanPath validates the path of a file inside a volume and returns its clean form, which has no trailing slash, as in the kubelet's own
// volumes. The error says what is wrong and does not repeat the path.
func CleanPath(p string) (string, error) {
	if len(p) > maxPathLength { // before it is copied
		return "", fmt.Errorf("must have at most %d bytes", maxPathLength)
	}
	clean, elements := path.Clean(p), strings.Split(p, "/")
	var problem string
	switch {
	case p == "":
		problem = "must not be empty"
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
	case strings.HasPrefix(clean, ".."): // names of the writer: ..data and the generations
		problem = `must not start with ".."`
	default:
		return clean, nil
	}
	return "", errors.New(problem)
}

// ParseMode parses a file mode as an octal string with a leading zero, up to 0777.
func ParseMode(s string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 || len(s) < 2 || len(s) > 5 || s[0] != '0' {
		return 0, fmt.Errorf("must be an octal number with a leading zero, from %q to %q", "0000", "0777")
	}
	return fs.FileMode(n), nil
}

// CheckMode returns an error if n cannot be a file's mode.
func CheckMode(n int32) error {
	if n < 0 || n > 0o777 {
		return errors.New("must be an integer from 0 to 511 (octal 0777)")
	}
	return nil
}

// CheckUser returns an error if n cannot be a user ID.
func CheckUser(n int64) error {
	if problems := validation.IsValidUserID(n); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// Validate returns an error for a spec with too many objects or with conflicting paths: two equal paths, or a file below another file.
// Paths of keys without items are not checked, because there a later source wins. A later path within one of the pod's own volumes wins
// too, as for the kubelet, and so does the path of a canary.
func (s *Spec) Validate() error {
	var d decoder
	if uses := s.objects(); len(uses) > MaxReferences {
		err := field.TooMany(field.NewPath(uses[MaxReferences].Field), len(uses), 0)
		err.Detail = fmt.Sprintf("a volume may name at most %d ConfigMaps and Secrets, each counted once; show the others in another volume", MaxReferences)
		d.add(err)
	}
	s.checkCanaries(&d)
	files := map[string]place{}
	var all []located
	for at, path := range s.paths() {
		longest := maxPathLength
		if at.item == allKeys {
			longest -= maxKeyLength
		}
		if len(path) > longest {
			d.add(field.Invalid(at.field(), shorten(path), fmt.Sprintf("must have at most %d bytes, with the directory of the source and a key in it", maxPathLength)))
		}
		all = append(all, located{path, at})
		if other, found := files[path]; found && at.item != allKeys && at.conflicts(other) && !at.replaces(other) {
			d.add(field.Invalid(at.field(), shorten(path), "conflicting duplicate paths: also the path of "+other.field().String()))
			continue
		}
		files[path] = at
	}
	for i, above := range filesAbove(all, files) {
		if above != "" {
			d.add(field.Invalid(all[i].at.field(), shorten(all[i].path), fmt.Sprintf("must not lie below %q, which %s makes a file", shorten(above), files[above].field())))
		}
	}
	s.checkDirectories(&d, all, files)
	return d.err()
}

// paths yields the paths that authors gave to files, each with its place. If the files in a source's directory are not known, it yields the
// directory with a trailing slash.
func (s *Spec) paths() iter.Seq2[place, string] {
	return func(yield func(place, string) bool) {
		for i := range s.Sources {
			source := &s.Sources[i]
			if source.Path != "" && !yield(place{source, 0}, source.Path) {
				return
			}
			isKnown := source.Projection != nil && len(source.Projection.Items) > 0
			if source.Below.Path != "" && !isKnown && !yield(place{source, allKeys}, source.Below.Path+"/") {
				return
			}
			for j := 0; source.Projection != nil && j < len(source.Projection.Items); j++ {
				if !yield(place{source, j}, source.Projection.Items[j].Path) {
					return
				}
			}
		}
	}
}

// allKeys is the item of a place that stands for the directory of a source.
const allKeys = -1

// place says where a path is set: in a source and, for a projection, in the item with this index. Its field path is only made for an error,
// because there may be thousands of paths.
type place struct {
	source *Source
	item   int
}

// conflicts reports whether paths at two places may conflict. Paths within one of the pod's own volumes never do. The zero place conflicts
// with all.
func (p place) conflicts(other place) bool {
	return p.source == nil || p.source.Volume == "" || p.source.Volume != other.source.Volume
}

// replaces reports whether a path is that of a canary, which wins over an equal path of another object.
func (p place) replaces(other place) bool {
	return p.source.isCanary() && !other.source.isCanary() && !other.source.Versions
}

func (p place) field() *field.Path {
	at := field.NewPath(p.source.Field)
	switch {
	case p.item == allKeys:
		return field.NewPath(p.source.Below.Field)
	case p.source.Projection == nil:
		return at.Child("path")
	case !strings.Contains(p.source.Field, "."): // in the short form, items are beside the object's name
		at = nil
	}
	return at.Child(attrItems).Index(p.item).Child("path")
}

// fieldName returns a field's name from a pod's author in a form for a field path: unchanged if it can be a name, or quoted.
func fieldName(name string) string {
	quoted := strconv.Quote(shorten(name))
	if name == "" || quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// shorten returns at most 64 bytes of a value, for an error.
func shorten(v string) string {
	const most = 64
	if len(v) <= most {
		return v
	}
	return strings.ToValidUTF8(v[:most], "") + fmt.Sprintf("... (%d bytes)", len(v))
}
