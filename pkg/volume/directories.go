package volume

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Directory is a directory that an author asked for: an empty one beside the files, for a mount below the volume, or the directory of all
// files of a source.
type Directory struct {
	// Path is clean and relative to the volume's root.
	Path string
	// Field is the field that asks for it: directories[0], sources[0].secret.path, or spec.containers[0].volumeMounts[1].mountPath.
	Field string
	// Added is how many bytes of Path come from the subPath by which a container mounts the volume.
	Added int
}

// directories reads the attribute directories.
func (p *parser) directories(text *string) (all []Directory) {
	if text == nil {
		return nil
	}
	at := field.NewPath("directories")
	elements, _ := p.list(at, *text)
	each(&p.decoder, at, elements, func(at *field.Path, from *string) {
		all = append(all, Directory{Path: p.path(at, *from), Field: at.String()})
	})
	return all
}

// In returns a copy of a source whose Projection puts all its files into a directory.
func (s Source) In(dir Directory) Source {
	s.Below = dir
	if dir.Path == "" {
		return s
	}
	projection := *s.Projection
	projection.Items = slices.Clone(projection.Items)
	for i := range projection.Items {
		projection.Items[i].Path = dir.Path + "/" + projection.Items[i].Path
	}
	s.Projection = &projection
	return s
}

// MountPoints returns the paths of the directories, sorted and without duplicates. root are those in the volume's root. inner are those
// inside directories of files, which only volumes with the write strategy InPlace have.
func (s *Spec) MountPoints() (root, inner []string) {
	if len(s.Directories) == 0 {
		return nil, nil
	}
	tops := map[string]bool{}
	for _, path := range s.paths() {
		tops[topOf(path)] = true
	}
	for _, d := range s.Directories {
		if tops[topOf(d.Path)] {
			inner = append(inner, d.Path)
		} else {
			root = append(root, d.Path)
		}
	}
	slices.Sort(root)
	slices.Sort(inner)
	return slices.Compact(root), slices.Compact(inner)
}

// checkDirectories refuses directories that conflict with the paths of files. A mount must not be on a directory of a generation, because
// the generation is removed later, unless the volume is written in place.
func (s *Spec) checkDirectories(d *decoder, paths []located, files map[string]place) {
	if len(s.Directories) == 0 {
		return
	}
	conflict := s.conflictAtomic(paths, files)
	if s.InPlace() {
		conflict = s.conflictInPlace(paths, files)
	}
	for i := range s.Directories {
		if problem := conflict(i); problem != "" {
			directory := &s.Directories[i]
			d.add(field.Invalid(field.NewPath(directory.Field), shorten(directory.Path), problem+": mount elsewhere, or map the key to another path"))
		}
	}
}

// conflictAtomic returns a function that says what is wrong with a directory, or returns "". Only the first element of a path counts, because
// it is a link into the present generation.
func (s *Spec) conflictAtomic(paths []located, files map[string]place) func(i int) string {
	tops := map[string]string{}
	for i := range paths {
		tops[topOf(paths[i].path)] = paths[i].path
	}
	return func(i int) string {
		top := topOf(s.Directories[i].Path)
		if file := tops[top]; file != "" {
			return fmt.Sprintf("must not be %q or below it, as %s is", shorten(top), describe(file, files))
		}
		return ""
	}
}

// conflictInPlace is conflictAtomic for a volume whose directories of files stay.
func (s *Spec) conflictInPlace(paths []located, files map[string]place) func(i int) string {
	all, n := slices.Clone(paths), len(paths)
	for i := range s.Directories {
		all = append(all, located{path: s.Directories[i].Path})
	}
	above, below := filesAbove(all, files), newTree(paths)
	return func(i int) string {
		path := s.Directories[i].Path
		if _, isFile := files[path]; isFile {
			return "must not hide " + describe(path, files)
		}
		if file := below.below(path); file != "" {
			return "must not hide " + describe(file, files)
		}
		if file := above[n+i]; file != "" {
			return "must not be below " + describe(file, files)
		}
		return ""
	}
}

// describe names a file, or a directory of files, with its field.
func describe(file string, files map[string]place) string {
	if dir, isDir := strings.CutSuffix(file, "/"); isDir {
		return fmt.Sprintf("the directory %q of %s", shorten(dir), files[file].field())
	}
	return fmt.Sprintf("the file %q of %s", shorten(file), files[file].field())
}

// topOf returns the first element of a path.
func topOf(p string) string {
	top, _, _ := strings.Cut(p, "/")
	return top
}
