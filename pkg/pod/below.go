package pod

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// maxMountPath is the kernel's PATH_MAX. No container starts with a longer path.
const maxMountPath = 4096

// Below is a mount of a container that lies inside a volume. The volume needs a directory for it.
type Below struct {
	// Path is the path of that directory, relative to the volume's root.
	Path string
	// MountPath is the mount's path in the container. Field is the path of that field in the spec.
	MountPath, Field string
	// Of is the path, in the spec, of the volume's own mount.
	Of string
	// By is "subPath" or "subPathExpr" if the container mounts only a part of the volume. Part is the value of that field.
	By, Part string
}

// MountsBelow returns the mounts of init and regular containers that lie directly in a volume. at is the path of the spec, as in
// field.NewPath("spec"). Ephemeral containers don't count, because they start long after the volume was mounted.
func MountsBelow(spec *corev1.PodSpec, at *field.Path, name string) (all []Below) {
	containers := Containers(spec, at)
	for _, c := range containers[:len(spec.InitContainers)+len(spec.Containers)] {
		all = append(all, mountsBelow(c, name)...)
	}
	return all
}

func mountsBelow(c Container, name string) (all []Below) {
	mounts, mounted := map[string]int{}, false
	for i := range c.VolumeMounts {
		mounts[cleanMountPath(&c.VolumeMounts[i])] = i
		mounted = mounted || c.VolumeMounts[i].Name == name
	}
	for i := range c.VolumeMounts {
		p := cleanMountPath(&c.VolumeMounts[i])
		if !mounted || len(p) > maxMountPath {
			continue
		}
		outer, found := nearest(mounts, p)
		if !found || c.VolumeMounts[outer].Name != name {
			continue
		}
		in, at := &c.VolumeMounts[outer], c.At.Child("volumeMounts")
		b := Below{
			Path:      strings.TrimPrefix(strings.TrimPrefix(p, cleanMountPath(in)), "/"),
			MountPath: c.VolumeMounts[i].MountPath, Field: at.Index(i).Child("mountPath").String(),
			Of: at.Index(outer).String(),
		}
		switch {
		case in.SubPathExpr != "":
			b.By, b.Part = "subPathExpr", in.SubPathExpr
		case in.SubPath != "":
			b.By, b.Part = "subPath", in.SubPath
			b.Path = path.Join(in.SubPath, b.Path)
		}
		all = append(all, b)
	}
	return all
}

// cleanMountPath returns where the kubelet mounts a volume in the container.
func cleanMountPath(m *corev1.VolumeMount) string { return path.Clean("/" + m.MountPath) }

// nearest returns the index of the mount at the nearest directory above a path. mounts has the index of each mount by its path.
func nearest(mounts map[string]int, p string) (i int, found bool) {
	for p != "/" && !found {
		p = path.Dir(p)
		i, found = mounts[p]
	}
	return i, found
}

// directories returns the directories that a volume needs for mounts below it. The error lists the first few that are impossible.
func directories(spec *volume.Spec, below []Below) (all []volume.Directory, err error) {
	const few = 32
	var errs field.ErrorList
	for i := range below {
		directory, err := below[i].directory(spec)
		switch {
		case err == nil:
			all = append(all, directory)
		case len(errs) < few:
			errs = append(errs, err)
		}
	}
	return all, errs.ToAggregate()
}

// directory returns the directory that a volume needs for the mount, or an error if that is impossible.
func (b *Below) directory(spec *volume.Spec) (volume.Directory, *field.Error) {
	at := field.NewPath(b.Field)
	switch {
	case b.By != "" && !spec.InPlace():
		return volume.Directory{}, field.Forbidden(at, fmt.Sprintf("must not lie below %s, which mounts %q of the volume by %s: each update would take this mount away; set writeStrategy: InPlace in the volume's attributes", b.Of, shorten(b.Part), b.By))
	case b.By == "subPathExpr":
		return volume.Directory{}, field.Forbidden(at, fmt.Sprintf("must not lie below %s, which mounts the volume by subPathExpr: which directory that is can't be known; use subPath", b.Of))
	}
	clean, err := volume.CleanPath(b.Path)
	if err != nil {
		return volume.Directory{}, field.Invalid(at, shorten(b.MountPath), err.Error())
	}
	return volume.Directory{Path: clean, Field: b.Field}, nil
}

// shorten returns at most the first 64 bytes of a text, for an error.
func shorten(text string) string {
	const most = 64
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
