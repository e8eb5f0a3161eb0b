package publisher

import (
	"sync"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// podLists keeps what the specs of pods list, once per pod. A thousand volumes of a pod may show the same
// volume of sixteen thousand items: they share the list, and one read of the pod. It goes with the last of
// these volumes. It is safe for concurrent use and has no goroutine.
type podLists struct {
	mu   sync.Mutex
	pods map[volume.Pod]*podList
}

// podList is what one pod's spec lists. Nobody changes a slice in it.
type podList struct {
	pod volume.Pod
	// users is how many volumes have it; podLists.mu guards it.
	users int

	mu    sync.Mutex
	shown map[string][]volume.Source
	envs  map[string]environment
	// named holds objects that the spec names itself, of those that a volume was found to show.
	named map[volume.Ref]bool
}

// environment is what the containers of a pod have, and in words what of that a volume can't know.
type environment struct {
	env     volume.Env
	leftOut []string
}

// hold returns the list of a pod, which is empty at first. The caller releases it.
func (l *podLists) hold(pod volume.Pod) *podList {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.pods[pod]
	if list == nil {
		list = &podList{pod: pod, shown: map[string][]volume.Source{}, envs: map[string]environment{}, named: map[volume.Ref]bool{}}
		l.pods[pod] = list
	}
	list.users++
	return list
}

// release ends a use of a list; nil is none.
func (l *podLists) release(list *podList) {
	if list == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if list.users--; list.users == 0 {
		delete(l.pods, list.pod)
	}
}

// has says whether the list has all that a spec takes from it, and all that the spec names itself.
func (l *podList) has(spec *volume.Spec, named []volume.Use) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range spec.Sources {
		if !l.hasSource(&spec.Sources[i]) {
			return false
		}
	}
	for _, use := range named {
		if !l.named[use.Ref] {
			return false
		}
	}
	return true
}

// hasSource is has for one source. The caller holds mu.
func (l *podList) hasSource(source *volume.Source) (has bool) {
	switch {
	case source.PodEnv != nil:
		_, has = l.envs[source.PodEnv.Container]
	case source.Volume != "":
		_, has = l.shown[source.Volume]
	default:
		has = true
	}
	return has
}

// add lists what a spec takes from its pod, and notes which objects of named the pod names. The error
// is that of the first source which can't be listed; the list then lacks it.
func (l *podList) add(says *pod.Spec, spec *volume.Spec, named []volume.Use) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range spec.Sources {
		source := &spec.Sources[i]
		switch {
		case l.hasSource(source):
		case source.PodEnv != nil:
			var e environment
			if e.env, e.leftOut, err = says.Env(source.PodEnv.Container); err != nil {
				return err
			}
			l.envs[source.PodEnv.Container] = e
		default:
			var sources []volume.Source
			if sources, err = says.Shown(source.Volume); err != nil {
				return err
			}
			l.shown[source.Volume] = sources
		}
	}
	if len(named) == 0 {
		return nil
	}
	wanted := map[volume.Ref]bool{}
	for _, use := range named {
		wanted[use.Ref] = true
	}
	for _, ref := range says.Refs {
		if wanted[ref] {
			l.named[ref] = true
		}
	}
	return nil
}

// resolve is pod.Resolve with the list. unlisted is the error of what the list lacks.
func (l *podList) resolve(spec *volume.Spec, unlisted error) (resolved *volume.Spec, leftOut []string, err error) {
	return pod.Resolve(spec, func(container string) (volume.Env, []string, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		e, ok := l.envs[container]
		if !ok {
			return volume.Env{}, nil, unlisted
		}
		return e.env, e.leftOut, nil
	}, func(name string) ([]volume.Source, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		sources, ok := l.shown[name]
		if !ok {
			return nil, unlisted
		}
		return sources, nil
	})
}

// lacks returns those of named that the pod's spec does not name.
func (l *podList) lacks(named []volume.Use) (unnamed []volume.Use) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, use := range named {
		if !l.named[use.Ref] {
			unnamed = append(unnamed, use)
		}
	}
	return unnamed
}

// What resolving a spec takes of memory at most, in bytes: an item's place among the paths, with its
// directories, or a variable's use of an object.
const (
	resolveBase  = 64 << 10
	resolveEntry = 400
)

// heap returns a bound of the memory, in bytes, that it takes to resolve a spec.
func (l *podList) heap(spec *volume.Spec) int64 {
	if l == nil {
		return resolveBase
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := 0
	for i := range spec.Sources {
		switch source := &spec.Sources[i]; {
		case source.PodEnv != nil:
			e := l.envs[source.PodEnv.Container]
			entries += len(e.env.From) + len(e.env.Vars) + len(e.leftOut)
		case source.Volume != "" && len(spec.Sources) > 1: // alone it meets no other paths
			for _, shown := range l.shown[source.Volume] {
				if shown.Projection != nil {
					entries += len(shown.Projection.Items)
				}
			}
		}
	}
	return resolveBase + resolveEntry*int64(entries)
}
