package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// podField returns where the pod's author wrote the name of what a source takes from the pod's
// own spec, "" for a source that takes nothing from there.
func (s *Source) podField() string {
	at := field.NewPath(s.Field)
	switch {
	case s.PodEnv != nil:
		return at.Child("container").String()
	case s.Volume == "":
		return ""
	case s.Field != attrVolume: // the short form is the name itself
		at = at.Child("name")
	}
	return at.String()
}

// NeedsPod returns where the spec first names something of the pod's own spec, which is for
// Resolve to add; "" if it does not.
func (s *Spec) NeedsPod() string {
	for i := range s.Sources {
		if at := s.Sources[i].podField(); at != "" {
			return at
		}
	}
	return ""
}

// Resolve returns a copy of the spec with what the pod's own spec says in place of each source
// that takes something from there. It calls env once for each container of a podEnv source, and
// shown once for each volume of a volume source. leftOut is what env says in words that a volume
// can't know, sorted.
//
// The error is that of a call, at the field that names the container or volume, or a *field.Error:
// the spec asks for more than a volume may have now, or gives two files the same path.
func (s *Spec) Resolve(
	env func(container string) (env Env, leftOut []string, err error),
	shown func(volume string) ([]Source, error),
) (resolved *Spec, leftOut []string, err error) {
	r := resolver{env: env, shown: shown, known: map[string]Env{}, taken: newTakenPaths()}
	for i := range s.Sources {
		added, err := r.add(s.Sources[i])
		if err == nil {
			err = r.checkPaths(added)
		}
		if err != nil {
			return nil, nil, err
		}
		if i+1 < len(s.Sources) { // nobody asks for those of the last source
			r.takePaths(added)
		}
	}
	copied := *s
	copied.Sources = r.sources
	if err := copied.checkReferences(); err != nil {
		return nil, nil, err
	}
	slices.Sort(r.leftOut)
	return &copied, slices.Compact(r.leftOut), nil
}

// resolver collects what the pod's own spec says. It lives for one call of Resolve.
type resolver struct {
	env   func(container string) (Env, []string, error)
	shown func(volume string) ([]Source, error)
	// known is shared by all sources of the same container: there may be many.
	known     map[string]Env
	variables int
	items     int
	leftOut   []string
	sources   []Source
	// taken holds the paths of the sources before.
	taken takenPaths
}

// add adds a source, and returns what it is resolved to.
func (r *resolver) add(source Source) (added []Source, err error) {
	at := source.podField()
	added = []Source{source}
	switch {
	case source.PodEnv != nil:
		added[0].Env, err = r.envFile(source.PodEnv, at)
		added[0].PodEnv = nil
	case source.Volume != "":
		if added, err = r.shown(source.Volume); err != nil {
			err = fmt.Errorf("%s: %w", at, err)
		}
		for i := range added {
			if added[i].Projection != nil {
				r.items += countItems(added[i].Projection.Items)
			}
		}
		if r.items > MaxItems {
			err = tooMany(at, r.items, fmt.Sprintf("the volume sources of a volume may list at most %d items and directories of their paths together; show the others in another volume", MaxItems))
		}
	}
	if err != nil {
		return nil, err
	}
	if r.sources == nil {
		r.sources = slices.Clip(added) // which all volumes that show the same share
	} else {
		r.sources = append(r.sources, added...)
	}
	if len(r.sources) > MaxSources {
		return nil, tooMany(cmp.Or(at, source.Field), len(r.sources), fmt.Sprintf("a volume may have at most %d sources, with those of projected volumes; show the others in another volume", MaxSources))
	}
	return added, nil
}

// countItems counts items, and the directories of their paths: each takes as much.
func countItems(items []Item) int {
	n := len(items)
	for i := range items {
		n += strings.Count(items[i].Path, "/")
	}
	return n
}

// envFile returns what a podEnv source shows.
func (r *resolver) envFile(file *PodEnvFile, at string) (*EnvFile, error) {
	env, ok := r.known[file.Container]
	if !ok {
		var leftOut []string
		var err error
		if env, leftOut, err = r.env(file.Container); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		r.known[file.Container] = env
		r.leftOut = append(r.leftOut, leftOut...)
	}
	if r.variables += len(env.From) + len(env.Vars); r.variables > MaxVariables {
		return nil, tooMany(at, r.variables, fmt.Sprintf("the env files of a volume may set at most %d variables together, each counted as often as it is set", MaxVariables))
	}
	return file.File(env), nil
}

// checkPaths refuses a path that can't stand beside those of the sources before. Within one of the
// pod's own volumes the last one counts, as for the kubelet.
func (r *resolver) checkPaths(added []Source) error {
	if len(r.taken.files) == 0 {
		return nil
	}
	for i := range added {
		for at, path := range added[i].paths() {
			if reason := r.taken.collision(path); reason != "" {
				return field.Invalid(at.field(), shorten(path), reason)
			}
		}
	}
	return nil
}

// takePaths notes the paths of a source.
func (r *resolver) takePaths(added []Source) {
	for i := range added {
		for at, path := range added[i].paths() {
			r.taken.add(at, path)
		}
	}
}
