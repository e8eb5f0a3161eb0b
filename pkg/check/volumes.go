package check

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// driverVolume is a volume of the driver in a workload.
type driverVolume struct {
	*corev1.Volume
	// at is the path of its attributes.
	at string
	// spec is the parsed attributes. resolved is the spec after it was resolved with the pod's own spec, or nil if that failed.
	spec, resolved *volume.Spec
}

// volumes checks a workload's volumes of the driver and adds what they reference. It returns those with valid attributes.
func (c *Checker) volumes(w *Workload, template podTemplate) (all []driverVolume) {
	driven := 0
	for i := range template.spec.Volumes {
		v := driverVolume{Volume: &template.spec.Volumes[i]}
		at := template.at.Child("volumes").Index(i).Child("csi")
		if v.CSI != nil && v.CSI.Driver != c.opts.Driver && strings.Contains(strings.ToLower(v.CSI.Driver), "refvol") {
			c.warning(w.Location, at.Child("driver").String(), fmt.Sprintf("%s is not %s, whose volumes are checked (--driver-name)", v.CSI.Driver, c.opts.Driver))
		}
		if v.CSI == nil || v.CSI.Driver != c.opts.Driver {
			continue
		}
		driven++
		if v.CSI.ReadOnly == nil || !*v.CSI.ReadOnly {
			c.problem(w.Location, at.Child("readOnly").String(), "Required value: must be true")
		}
		v.at = at.Child(attributesField).String()
		pod := volume.Pod{Namespace: w.Namespace, Name: w.Name, ServiceAccount: w.ServiceAccount}
		spec, err := volume.Parse(v.CSI.VolumeAttributes, pod, volume.AcrossNamespaces())
		if err != nil {
			c.attributeErrors(w.Location, v.at, err)
			continue
		}
		v.spec = spec
		for _, use := range spec.CrossNamespaceRefs(pod) {
			if c.opts.NodeIdentity {
				break // this is reported as a problem
			}
			c.warning(w.Location, v.at+"."+use.Field, "an object of another namespace: needs --cross-namespace of the plugin, and the service account's right to "+c.neededRights()+" it")
		}
		c.decimalModes(w.Location, &v)
		c.sources(w, template, &v)
		all = append(all, v)
	}
	c.podLimits(w.Location, template, driven, all)
	return all
}

// checkUnnamed adds a problem for each object that a volume of the driver shows and that the pod's spec does not name itself. If the
// identity isn't known, it adds a warning.
func (c *Checker) checkUnnamed(w *Workload) {
	named := map[volume.Ref]bool{}
	refuse := func(field, message string) {
		if c.opts.NodeIdentity {
			c.problem(w.Location, field, message)
			return
		}
		c.warning(w.Location, field, message+" (no --identity was given: the chart installs node)")
	}
	for i := range w.References {
		if r := &w.References[i]; !r.Refvol {
			named[r.ref()] = true
		}
	}
	for i := range w.References {
		switch r := &w.References[i]; {
		case !r.Refvol || named[r.ref()]:
		case r.Namespace != w.Namespace:
			refuse(r.Field, "an object of another namespace: no volume shows it with --identity=node of the plugin")
		case r.Canary:
			refuse(r.Field, fmt.Sprintf("the pod's spec does not name %s itself, which --identity=node of the plugin needs: add a volume of the pod that names it and that nothing mounts or shows", r.ref()))
		default:
			refuse(r.Field, fmt.Sprintf("the pod's spec does not name %s itself, which --identity=node of the plugin needs: add a volume of the pod that names it, and show that by a volume source", r.ref()))
		}
	}
}

// neededRights returns the rights that are needed for an object of another namespace.
func (c *Checker) neededRights() string {
	if len(c.opts.PodVerbs) > 0 {
		return authz.Phrase(c.opts.PodVerbs)
	}
	return verbGet
}

// attributesField is the field of a volume that holds its attributes.
const attributesField = "volumeAttributes"

// attributeErrors adds the errors in a volume's attributes, each with its own path below at.
func (c *Checker) attributeErrors(place Location, at string, err error) {
	errs := []error{err}
	if several, ok := err.(utilerrors.Aggregate); ok { //nolint:errorlint // What Parse returns is not wrapped.
		errs = several.Errors()
	}
	for _, err := range errs {
		var bad *field.Error
		switch {
		case !errors.As(err, &bad):
			c.problem(place, at, err.Error())
		case bad.Field == attributesField: // all attributes together
			c.problem(place, at, bad.ErrorBody())
		default:
			c.problem(place, at+"."+bad.Field, bad.ErrorBody())
		}
	}
}

// sources adds what the sources of a volume reference.
func (c *Checker) sources(w *Workload, template podTemplate, v *driverVolume) {
	before := len(c.report.Problems)
	for i := range v.spec.Sources {
		c.source(w, template, *v, &v.spec.Sources[i])
	}
	if len(c.report.Problems) > before {
		return
	}
	below := pod.MountsBelow(withToken(template.spec), template.at)[v.Name]
	resolved, _, err := pod.Resolve(v.spec,
		func(container string) (volume.Env, []string, error) {
			return pod.Env(template.spec, w.Namespace, container)
		},
		func(name string) ([]volume.Source, error) {
			return pod.VolumeSources(template.spec, template.at, w.Namespace, name)
		},
		func(string) []pod.Below { return below }, v.Name, nil)
	if err != nil { // each source is valid, but they conflict
		c.unresolved(w.Location, template, *v, err)
		return
	}
	v.resolved = resolved
	c.below(w.Location, *v, below)
	c.readable(w.Location, template, *v, resolved)
}

// readable adds warnings for containers whose user cannot read a file of a volume that they mount, as far as the pod's spec shows that. It
// ignores files with an owner of their own.
func (c *Checker) readable(at Location, template podTemplate, v driverVolume, resolved *volume.Spec) {
	ofPod := ptr.Deref(template.spec.SecurityContext, corev1.PodSecurityContext{})
	if ofPod.FSGroup != nil && resolved.UID == nil && resolved.GID == nil {
		return // the group may read every file
	}
	modes := modesOf(resolved)
	uid, gid := ptr.Deref(resolved.UID, 0), ptr.Deref(cmp.Or(resolved.GID, ofPod.FSGroup), 0)
	for _, container := range pod.Containers(template.spec, template.at) {
		own := ptr.Deref(container.SecurityContext, corev1.SecurityContext{})
		user := ptr.Deref(cmp.Or(own.RunAsUser, ofPod.RunAsUser), 0)
		// A user that is not in the image has root's group.
		groups := append(slices.Clone(ofPod.SupplementalGroups), ptr.Deref(cmp.Or(own.RunAsGroup, ofPod.RunAsGroup), 0), ptr.Deref(ofPod.FSGroup, -1))
		read := fs.FileMode(0o004)
		switch {
		case user == 0 || !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }):
			continue
		case user == uid:
			read = 0o400
		case slices.Contains(groups, gid):
			read = 0o040
		}
		if i := slices.IndexFunc(modes, func(mode fs.FileMode) bool { return mode&read == 0 }); i >= 0 {
			c.warning(at, v.at, fmt.Sprintf("user %d of container %s can't read a file of mode %04o, owner %d and group %d: set uid, gid or mode, or the pod's fsGroup", user, container.Name, modes[i], uid, gid))
		}
	}
}

// modesOf returns the modes of a volume's files that have no owner of their own.
func modesOf(spec *volume.Spec) (modes []fs.FileMode) {
	for i := range spec.Sources {
		s := &spec.Sources[i]
		p := ptr.Deref(s.Projection, volume.Projection{})
		items := p.Items
		if len(items) == 0 {
			items = []volume.Item{{Mode: s.Mode}} // one item stands for every key
		}
		for _, item := range items {
			if cmp.Or(item.User, p.DefaultUser) == nil {
				modes = append(modes, ptr.Deref(cmp.Or(item.Mode, spec.DefaultMode, p.DefaultMode), volume.DefaultMode))
			}
		}
	}
	return modes
}

// source adds what one source of a volume references.
func (c *Checker) source(w *Workload, template podTemplate, v driverVolume, s *volume.Source) {
	switch {
	case s.Projection != nil:
		w.add(projection(v, s))
	case s.Env != nil, s.Join != nil:
		for _, r := range referencesOf(s.References(), s.Env != nil) {
			r.Field = nameField(v, r.Field)
			w.add(r)
		}
	case s.Expand != nil:
		text := referencesOf([]volume.Reference{s.Expand.Text}, false)
		for _, r := range append(text, referencesOf(s.Expand.Env.References(), true)...) {
			r.Field = nameField(v, r.Field)
			w.add(r)
		}
	case s.PodEnv != nil:
		c.podEnv(w, template, v, s)
	case s.Volume != "":
		c.addShown(w, template, v, s)
	}
}

// addShown adds what a volume source shows: the references of one of the pod's own volumes.
func (c *Checker) addShown(w *Workload, template podTemplate, v driverVolume, s *volume.Source) {
	at := nameField(v, s.Field)
	sources, err := pod.VolumeSources(template.spec, template.at, w.Namespace, s.Volume)
	if err != nil {
		c.problem(w.Location, at, err.Error())
		return
	}
	for i := range sources {
		r := projection(v, &sources[i])
		r.Field, r.Via = at, ownNameField(&sources[i])
		w.add(r)
	}
	for path := range mountsOf(template, s.Volume) {
		c.warning(w.Location, path.String(), fmt.Sprintf("volume %s shows the same: two copies and two watches; mount one of the two only", v.Name))
	}
}

// mountsOf yields the mounts of a volume in all containers, with their paths.
func mountsOf(template podTemplate, name string) iter.Seq2[*field.Path, *corev1.VolumeMount] {
	return func(yield func(*field.Path, *corev1.VolumeMount) bool) {
		for _, container := range pod.Containers(template.spec, template.at) {
			for i := range container.VolumeMounts {
				mount := &container.VolumeMounts[i]
				if mount.Name == name && !yield(container.At.Child("volumeMounts").Index(i), mount) {
					return
				}
			}
		}
	}
}

// ownNameField returns the path of the field with the object's name in one of the pod's own volumes.
func ownNameField(s *volume.Source) string {
	if s.Projection.Ref.Kind == volume.Secret && !strings.Contains(s.Field, ".projected.") {
		return s.Field + ".secretName"
	}
	return s.Field + ".name"
}

// podEnv adds the references of the environment that a podEnv source reads.
func (c *Checker) podEnv(w *Workload, template podTemplate, v driverVolume, s *volume.Source) {
	at := v.at + "." + s.Field
	env, leftOut, err := pod.Env(template.spec, w.Namespace, s.PodEnv.Container)
	if err != nil {
		c.problem(w.Location, at+".container", err.Error())
		return
	}
	if len(leftOut) > 0 {
		c.warning(w.Location, at, "leaves out values that a volume can't know: "+strings.Join(leftOut, ", "))
	}
	for _, r := range referencesOf(env.References(), true) {
		// Paths in the pod's spec start at the template's place in the manifest.
		r.Field, r.Via = at, template.at.String()+strings.TrimPrefix(r.Field, "spec")+".name"
		w.add(r)
	}
}

// reference returns the reference for an object that a volume of the driver shows.
func reference(at string, ref volume.Ref, optional bool) Reference {
	return Reference{Field: at, Refvol: true, Kind: string(ref.Kind), Namespace: ref.Namespace, Name: ref.Name, Optional: optional}
}

// referencesOf returns the references of a source or an environment. Field is the path of the reference itself, without the name.
func referencesOf(from []volume.Reference, env bool) (all []Reference) {
	for _, use := range from {
		r := reference(use.Field, use.Ref, use.Optional)
		r.Canary = use.Canary
		if r.env = env; use.Key != "" {
			r.Keys = []string{use.Key}
		}
		all = append(all, r)
	}
	return all
}

// projection returns the reference of a source that shows an object's keys.
func projection(v driverVolume, s *volume.Source) Reference {
	r := reference(nameField(v, s.Field), s.Projection.Ref, s.Projection.Optional)
	r.Canary = s.Projection.Canary
	for _, item := range s.Projection.Items {
		r.Keys = append(r.Keys, item.Key)
	}
	return r
}

// nameField returns the path of the field that holds the name of a reference. at is the reference's path below the attributes. In the short
// form, the attribute is the name itself.
func nameField(v driverVolume, at string) string {
	if !strings.Contains(at, ".") {
		return v.at + "." + at
	}
	return v.at + "." + at + ".name"
}
