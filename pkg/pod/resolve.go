package pod

import (
	"fmt"
	"slices"

	"github.com/refvol/refvol/pkg/volume"
)

// Resolve returns a copy of a volume's spec in which sources that refer to the pod's own spec are replaced by what that spec says. env is
// called once for each container of a podEnv source, and shown for each volume source: see Env and VolumeSources. below is called once with
// the name of the volume itself, and may be nil: see MountsBelow. leftOut combines the leftOut of all calls, sorted, without duplicates.
//
// allow is called with what the result will name, before its paths are made and checked, and may be nil.
//
// The error is that of a call, with the field that names the container or volume, or that of volume.Spec.Validate.
func Resolve(
	spec *volume.Spec,
	env func(container string) (env volume.Env, leftOut []string, err error),
	shown func(name string) ([]volume.Source, error),
	below func(name string) []Below, name string,
	allow func(volume.Names) error,
) (resolved *volume.Spec, leftOut []string, err error) {
	copied := *spec
	copied.Sources = nil
	count := volume.NewCount()
	// All sources of a container share its environment, because there may be many sources.
	known := map[string]*volume.Env{}
	for _, source := range spec.Sources {
		added := []volume.Source{source}
		switch {
		case source.PodEnv != nil:
			container := source.PodEnv.Container
			if known[container] == nil {
				read, more, err := env(container)
				if err != nil {
					return nil, nil, fmt.Errorf("%s: %w", source.PodField(), err)
				}
				known[container] = &read
				leftOut = append(leftOut, more...)
			}
			added[0].Env, added[0].PodEnv = known[container], nil
			count.Add(&added[0])
		case source.Volume != "":
			own, err := shown(source.Volume)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", source.PodField(), err)
			}
			added = slices.Clone(own)
			for i := range added {
				count.AddIn(&added[i], source.Below.Path)
				added[i].Below = source.Below // the paths are made when they are allowed
			}
		default:
			count.Add(&source)
		}
		copied.Sources = append(copied.Sources, added...)
	}
	var mounts []Below
	if below != nil {
		mounts = below(name)
	}
	count.AddDirectories(spec.Directories)
	for i := range mounts {
		count.AddDirectory(len(mounts[i].Path), min(mounts[i].added(), maxMountPath)) // a longer one is refused below
	}
	if allow != nil {
		if err := allow(count.Names); err != nil {
			return nil, nil, err
		}
	}
	made, err := directories(spec, mounts)
	if err != nil {
		return nil, nil, err
	}
	copied.Directories = slices.Concat(spec.Directories, made)
	for i := range copied.Sources {
		if source := &copied.Sources[i]; source.Volume != "" {
			*source = source.In(source.Below)
		}
	}
	if err := copied.Validate(); err != nil {
		return nil, nil, err
	}
	slices.Sort(leftOut)
	return &copied, slices.Compact(leftOut), nil
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
