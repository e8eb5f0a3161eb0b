package check

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	useInPlace  = "; set writeStrategy: InPlace in the volume's attributes"
	fileStays   = "the file that it mounts keeps its content" + useInPlace
	dirEmpties  = "the directory that it mounts becomes empty a second after the volume's first update" + useInPlace
	eitherStays = "a file that it mounts keeps its content, and a directory becomes empty a second after the volume's first update" + useInPlace
	mayBeAbsent = "its key is optional: while it is missing the container fails (failed to create subPath directory)"
)

// subPaths adds warnings for mounts of a part of a volume that don't show changes, or whose part may be missing. The cluster's answers are
// known already.
func (c *Checker) subPaths(at Location, template podTemplate, v driverVolume) {
	changes := !v.spec.InPlace() && !v.spec.Pinned()
	for place, mount := range mountsOf(template, v.Name) {
		if mount.SubPathExpr != "" && changes {
			c.warning(at, place.Child("subPathExpr").String(), eitherStays)
		}
		if mount.SubPath == "" {
			continue
		}
		field, part := place.Child("subPath").String(), partOf(v, mount)
		if changes && part.isDir {
			c.warning(at, field, dirEmpties)
		} else if changes {
			c.warning(at, field, fileStays)
		}
		if part.isOptional && !slices.ContainsFunc(part.keys, c.hasKey) {
			c.warning(at, field, mayBeAbsent)
		}
	}
}

// part is the part of a volume that a container mounts.
type part struct {
	isDir bool
	// isOptional means that only optional keys, listed in keys, make the part.
	isOptional bool
	keys       []volume.Reference
}

// partOf returns what a mount with subPath mounts. If no source names the path, it is a key of an object that is shown as a whole.
func partOf(v driverVolume, mount *corev1.VolumeMount) part {
	spec, p := v.spec, path.Clean(mount.SubPath)
	if v.resolved != nil {
		spec = v.resolved
	}
	named, whole := part{isOptional: true}, part{isOptional: true}
	found := slices.ContainsFunc(spec.Directories, func(d volume.Directory) bool { return d.Path == p || strings.HasPrefix(d.Path, p+"/") })
	if found {
		named = part{isDir: true}
	}
	use := func(file string, keys ...volume.Reference) {
		below := strings.HasPrefix(file, p+"/")
		if file != p && !below {
			return
		}
		found = true
		named.isDir = named.isDir || below
		named.isOptional = named.isOptional && len(keys) > 0
		named.keys = append(named.keys, keys...)
	}
	for i := range spec.Sources {
		s := &spec.Sources[i]
		switch {
		case s.Expand != nil && s.Expand.Text.Optional:
			use(s.Path, s.Expand.Text)
		case s.Projection == nil:
			use(s.Path)
		case len(s.Projection.Items) == 0:
			dir := s.Below.Path
			use(dir + "/")
			if key := strings.TrimPrefix(p, dir+"/"); dir == "" || key != p {
				whole.isOptional = whole.isOptional && s.Projection.Optional
				whole.keys = append(whole.keys, volume.Reference{Ref: s.Projection.Ref, Key: key})
			}
		}
		for j := 0; s.Projection != nil && j < len(s.Projection.Items); j++ {
			item := &s.Projection.Items[j]
			if s.Projection.Optional {
				use(item.Path, volume.Reference{Ref: s.Projection.Ref, Key: item.Key})
			} else {
				use(item.Path)
			}
		}
	}
	if found {
		return named
	}
	whole.isOptional = whole.isOptional && len(whole.keys) > 0
	return whole
}

// hasKey reports whether an object is known to have a key.
func (c *Checker) hasKey(r volume.Reference) bool {
	object := c.objects[r.Ref]
	return object.Exists == Yes && (object.Data.Has(r.Key) || object.BinaryData.Has(r.Key))
}
