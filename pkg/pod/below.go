package pod

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// maxMountPath is the kernel's PATH_MAX. No container starts with a longer path.
const maxMountPath = 4096

// Below is a mount of a container that lies inside a volume. The volume needs a directory for it.
type Below struct {
	// In is the subPath by which the container mounts the volume, or "". Path is the path of that directory relative to In. All mounts of a
	// container share the text of In, so the two are joined when that is allowed; see Directory.
	In, Path string
	// MountPath is the mount's path in the container. Field is the path of that field in the spec.
	MountPath, Field string
	// Of is the path, in the spec, of the volume's own mount.
	Of string
	// By is "subPath" or "subPathExpr" if the container mounts only a part of the volume. Part is the value of that field.
	By, Part string
}

// MountsBelow returns the mounts of init and regular containers that lie directly in a volume, by the volume's name. at is the path of the
// spec, as in field.NewPath("spec"). Ephemeral containers don't count, because they start long after the volume was mounted.
func MountsBelow(spec *corev1.PodSpec, at *field.Path) map[string][]Below {
	all := map[string][]Below{}
	containers := Containers(spec, at)
	for _, c := range containers[:len(spec.InitContainers)+len(spec.Containers)] {
		for i, outer := range outerMounts(c) {
			if outer < 0 {
				continue
			}
			name := c.VolumeMounts[outer].Name
			all[name] = append(all[name], below(c, i, outer))
		}
	}
	return all
}

// below describes a mount of a container that lies in another one.
func below(c Container, inner, outer int) Below {
	in, at := &c.VolumeMounts[outer], c.At.Child("volumeMounts")
	b := Below{
		Path:      strings.TrimPrefix(strings.TrimPrefix(cleanMountPath(&c.VolumeMounts[inner]), cleanMountPath(in)), "/"),
		MountPath: c.VolumeMounts[inner].MountPath, Field: at.Index(inner).Child("mountPath").String(),
		Of: at.Index(outer).String(),
	}
	switch {
	case in.SubPathExpr != "":
		b.By, b.Part = "subPathExpr", in.SubPathExpr
	case in.SubPath != "":
		b.By, b.Part, b.In = "subPath", in.SubPath, in.SubPath
	}
	return b
}

// Directory returns the path of the directory relative to the volume's root. It fails if that path is not valid.
func (b *Below) Directory() (string, error) {
	if len(b.In) > maxMountPath { // without a copy
		return volume.CleanPath(b.In)
	}
	return volume.CleanPath(path.Join(b.In, b.Path))
}

// added returns how many bytes In adds to the path.
func (b *Below) added() int {
	if b.In == "" {
		return 0
	}
	return len(b.In) + 1
}

// outerMounts returns, for each mount of a container, the index of the mount at the nearest directory above it, or -1. It takes one sort: a
// path may have 2,000 directories above it.
func outerMounts(c Container) []int {
	outer, paths, order := make([]int, len(c.VolumeMounts)), make([]string, len(c.VolumeMounts)), []int{}
	for i := range c.VolumeMounts {
		outer[i], paths[i] = -1, cleanMountPath(&c.VolumeMounts[i])
		if len(paths[i]) <= maxMountPath {
			order = append(order, i)
		}
	}
	// A path sorts directly before what lies below it.
	slices.SortStableFunc(order, func(a, b int) int { return comparePaths(paths[a], paths[b]) })
	var above []int // the mounts above the present one, outermost first
	for _, i := range order {
		for len(above) > 0 && !isBelow(paths[i], paths[above[len(above)-1]]) && paths[i] != paths[above[len(above)-1]] {
			above = above[:len(above)-1]
		}
		n := len(above)
		if n > 0 && paths[above[n-1]] == paths[i] { // the last mount at a path counts
			n--
		}
		if n > 0 {
			outer[i] = above[n-1]
		}
		above = append(above[:n], i)
	}
	return outer
}

// comparePaths orders clean absolute paths like a tree: a slash sorts before all other bytes.
func comparePaths(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	switch {
	case n == len(a) || n == len(b):
		return len(a) - len(b)
	case a[n] == '/':
		return -1
	case b[n] == '/':
		return 1
	}
	return int(a[n]) - int(b[n])
}

// isBelow reports whether a clean absolute path lies below another one.
func isBelow(p, dir string) bool {
	return p != dir && strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// cleanMountPath returns where the kubelet mounts a volume in the container.
func cleanMountPath(m *corev1.VolumeMount) string { return path.Clean("/" + m.MountPath) }

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
	clean, err := b.Directory()
	if err != nil {
		return volume.Directory{}, field.Invalid(at, shorten(b.MountPath), err.Error())
	}
	return volume.Directory{Path: clean, Field: b.Field, Added: min(b.added(), len(clean))}, nil
}

// shorten returns at most the first 64 bytes of a text, for an error.
func shorten(text string) string {
	const most = 64
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
