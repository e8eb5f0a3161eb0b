package pod

import (
	"fmt"
	"slices"

	"github.com/refvol/refvol/pkg/volume"
)

// Resolve returns a copy of a volume's spec with what the pod's own spec says in place of each source that
// takes something from there. env is called once for each container of a podEnv source, and shown once for
// each volume of a volume source: see Env and VolumeSources. leftOut are the leftOut of all calls, sorted, each once.
//
// The error is that of a call, with the field that names the container or volume, or a *field.Error: the spec
// asks for more than a volume may have, or gives two files the same path.
func Resolve(
	spec *volume.Spec,
	env func(container string) (env volume.Env, leftOut []string, err error),
	shown func(name string) ([]volume.Source, error),
) (resolved *volume.Spec, leftOut []string, err error) {
	r := resolver{env: env, shown: shown, known: map[string]volume.Env{}}
	taken := volume.NewPaths()
	for i := range spec.Sources {
		added, err := r.add(spec.Sources[i])
		if err != nil {
			return nil, nil, err
		}
		// Within one of the pod's own volumes the last path counts, as for the kubelet.
		for j := range added {
			if err := taken.Check(&added[j]); err != nil {
				return nil, nil, err
			}
		}
		if i+1 == len(spec.Sources) {
			break // no source is compared with the last one
		}
		for j := range added {
			taken.Add(&added[j])
		}
	}
	copied := *spec
	copied.Sources = r.sources
	if err := copied.CheckReferences(); err != nil {
		return nil, nil, err
	}
	slices.Sort(r.leftOut)
	return &copied, slices.Compact(r.leftOut), nil
}

// resolver collects the sources of a resolved spec. It lives for one call of Resolve.
type resolver struct {
	env   func(container string) (volume.Env, []string, error)
	shown func(name string) ([]volume.Source, error)
	// known has the environment of each container, which all of its sources share: there may be many.
	known   map[string]volume.Env
	leftOut []string
	sources []volume.Source
}

// add adds a source, and returns what it is resolved to.
func (r *resolver) add(source volume.Source) (added []volume.Source, err error) {
	at := source.PodField()
	added = []volume.Source{source}
	switch {
	case source.PodEnv != nil:
		added[0].Env, err = r.envFile(source.PodEnv, at)
		added[0].PodEnv = nil
	case source.Volume != "":
		if added, err = r.shown(source.Volume); err != nil {
			err = fmt.Errorf("%s: %w", at, err)
		}
	}
	if err != nil {
		return nil, err
	}
	if r.sources == nil {
		r.sources = slices.Clip(added) // all volumes that show the same share this slice
	} else {
		r.sources = append(r.sources, added...)
	}
	return added, nil
}

// CountItems returns how many items the sources of a resolved spec list.
func CountItems(spec *volume.Spec) (n int) {
	for i := range spec.Sources {
		if projection := spec.Sources[i].Projection; projection != nil {
			n += len(projection.Items)
		}
	}
	return n
}

// envFile returns what a podEnv source shows.
func (r *resolver) envFile(file *volume.PodEnvFile, at string) (*volume.EnvFile, error) {
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
	return file.File(env), nil
}
