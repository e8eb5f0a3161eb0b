package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// tokenPath is where the API server mounts the service account's token, unless the pod disables that.
const tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount" //nolint:gosec // a path

// withToken returns a pod's spec with the mounts that the API server adds, as far as they matter for mounts below a volume.
func withToken(spec *corev1.PodSpec) *corev1.PodSpec {
	if spec.AutomountServiceAccountToken != nil && !*spec.AutomountServiceAccountToken {
		return spec
	}
	copied := *spec
	add := func(containers []corev1.Container) []corev1.Container {
		containers = slices.Clone(containers)
		for i := range containers {
			mounts := containers[i].VolumeMounts
			if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == tokenPath }) {
				containers[i].VolumeMounts = append(slices.Clip(mounts), corev1.VolumeMount{MountPath: tokenPath})
			}
		}
		return containers
	}
	copied.InitContainers, copied.Containers = add(spec.InitContainers), add(spec.Containers)
	return &copied
}

// below adds a problem for each mount below a volume for which no directory is created. If the plugin reads the pod's spec, it finds these
// mounts itself.
func (c *Checker) below(at Location, v driverVolume, below []pod.Below) {
	if c.opts.NodeIdentity || v.spec.NeedsPod() != "" {
		return
	}
	for i := range below {
		b := &below[i]
		dir, err := b.Directory()
		if err != nil {
			continue // it is reported where the volume is resolved
		}
		if slices.ContainsFunc(v.spec.Directories, func(d volume.Directory) bool { return d.Path == dir || strings.HasPrefix(d.Path, dir+"/") }) {
			continue
		}
		place, what := b.Field, ""
		if b.MountPath == tokenPath {
			place, what = b.Of+".mountPath", "the service account's token is mounted below it: "
		}
		list, _ := json.Marshal([]string{dir})
		c.problem(at, place, fmt.Sprintf("%sthe volume has no directory for it, and the container will not start: set directories: '%s' in the volume's attributes", what, list))
	}
}

// unresolved adds the conflicts in a volume. A conflict with a mount below the volume is reported at the mount.
func (c *Checker) unresolved(at Location, template podTemplate, v driverVolume, err error) {
	errs := []error{err}
	if several, ok := err.(utilerrors.Aggregate); ok { //nolint:errorlint // What Resolve returns is not wrapped.
		errs = several.Errors()
	}
	for _, err := range errs {
		var bad *field.Error
		if errors.As(err, &bad) && strings.HasPrefix(bad.Field, template.at.String()+".") && strings.HasSuffix(bad.Field, ".mountPath") {
			c.problem(at, bad.Field, bad.ErrorBody())
			continue
		}
		c.problem(at, v.at, err.Error())
	}
}
