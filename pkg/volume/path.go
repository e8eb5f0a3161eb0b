package volume

import (
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of a path inside a volume; they are the kernel's PATH_MAX and NAME_MAX,
// and the kubelet applies the same to its own volumes.
const (
	maxPathLength    = 4096
	maxElementLength = 255
)

// CleanPath validates a path that a file is to have inside a volume and returns
// its clean form. It returns an error whose text says what is wrong and does not
// repeat the path.
func CleanPath(p string) (string, error) {
	switch {
	case p == "":
		return "", fmt.Errorf("must not be empty")
	case strings.HasPrefix(p, "/"):
		return "", fmt.Errorf("must be relative")
	case len(p) > maxPathLength:
		return "", fmt.Errorf("must have at most %d bytes", maxPathLength)
	case strings.ContainsRune(p, 0):
		return "", fmt.Errorf("must not contain a NUL byte")
	}
	for _, element := range strings.Split(p, "/") {
		if element == ".." {
			return "", fmt.Errorf(`must not contain ".."`)
		}
		if len(element) > maxElementLength {
			return "", fmt.Errorf("each element must have at most %d bytes", maxElementLength)
		}
	}
	clean := path.Clean(p)
	if clean == "." {
		return "", fmt.Errorf("must name a file, not the volume itself")
	}
	if strings.HasPrefix(clean, "..") {
		// Names like these are the writer's own: ..data and the generations.
		return "", fmt.Errorf(`must not start with ".."`)
	}
	if strings.HasSuffix(p, "/") {
		return "", fmt.Errorf("must name a file, not a directory")
	}
	return clean, nil
}

// checkCollisions reports explicit paths that can't stand beside each other: two
// that are equal, and a file where another path needs a directory. Paths that
// come from keys without items are left out: there a later source wins.
func (s *Spec) checkCollisions() field.ErrorList {
	var errs field.ErrorList
	files := map[string]string{}       // path -> field of the item that makes a file of it
	directories := map[string]string{} // path -> field of the first item that needs it as a directory
	for i := range s.Sources {
		for j, item := range s.Sources[i].Items {
			at := itemPath(&s.Sources[i], j).Child("path")
			if other, ok := files[item.Path]; ok {
				errs = append(errs, field.Invalid(at, shorten(item.Path), "conflicting duplicate paths: also the path of "+other))
				continue
			}
			if other, ok := directories[item.Path]; ok {
				errs = append(errs, field.Invalid(at, shorten(item.Path), "must not be a file: "+other+" needs a directory of that name"))
				continue
			}
			files[item.Path] = at.String()
			for dir := path.Dir(item.Path); dir != "."; dir = path.Dir(dir) {
				if other, ok := files[dir]; ok {
					errs = append(errs, field.Invalid(at, shorten(item.Path), fmt.Sprintf("must not lie below %q, which %s makes a file", shorten(dir), other)))
				}
				if _, ok := directories[dir]; !ok {
					directories[dir] = at.String()
				}
			}
		}
	}
	return errs
}

// itemPath returns the field path of item j of a source. The short form has its
// items beside the object's name, a source in a list has them below it.
func itemPath(s *Source, j int) *field.Path {
	if strings.Contains(s.Field, ".") {
		return field.NewPath(s.Field).Child("items").Index(j)
	}
	return field.NewPath("items").Index(j)
}

// shorten returns at most 64 bytes of a value for an error text.
func shorten(v string) string { return shortenTo(v, 64) }

func shortenTo(v string, most int) string {
	if len(v) <= most {
		return v
	}
	return strings.ToValidUTF8(v[:most], "") + fmt.Sprintf("... (%d bytes)", len(v))
}
