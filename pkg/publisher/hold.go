package publisher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// hold returns the answers, with the held objects at the versions that the files show. A version that changes no file is not held, so the
// newest rendering is compared with the files. The files themselves say which objects they show. So nothing needs to be remembered, and a
// restarted plugin decides the same. The decision is kept as long as no version changes.
func (v *vol) hold(ctx context.Context, got *answers) (*answers, *failure) {
	before, waiting := v.held, v.waiting(got)
	v.held = held{}
	if len(waiting) == 0 {
		return got, nil
	}
	if maps.Equal(before.newest, got.at) {
		if same := got.holding(before.at, nil); v.files.isCurrent(same) {
			v.held = before
			return same, nil
		}
	}
	next, f := v.render(ctx, got)
	if f != nil && (errors.Is(f.err, errCrowded) || ctx.Err() != nil) {
		return got, f
	}
	found, err := v.compare(ctx, next) // if rendering failed, next is nil and the objects are held too
	switch {
	case err != nil:
		return got, v.filesFailed(fmt.Errorf("compare the files of volume %s: %w", v.entry.id, err))
	case !found.isThere:
		return got, nil
	}
	r := &rollout{shown: v.files.shown, newest: got.at, waiting: waiting, atOnce: map[volume.Ref]bool{}, before: found.before, changing: found.changing}
	for _, ref := range v.binding.spec.refs {
		r.atOnce[ref] = v.isAtOnce(ref, got)
	}
	for _, refs := range v.binding.spec.anew(found.files, v.files.shown, got.refused) {
		r.changing = append(r.changing, refs)
		for _, ref := range refs {
			r.atOnce[ref] = true
		}
	}
	at := r.held()
	if len(at) == 0 {
		return got, nil
	}
	v.held = held{newest: got.at, at: at, failure: v.whyHeld(got, at)}
	return got.holding(at, found.files), nil
}

// waiting returns the objects whose newest version the pod may not take. Torn files show no version, so nothing can be held then.
func (v *vol) waiting(got *answers) (refs []volume.Ref) {
	if !v.entry.isMounted() || v.files.torn {
		return nil
	}
	for ref, object := range got.objects {
		if got.at[ref] == v.files.shown[ref] {
			continue
		}
		if share, _ := shareOf(object); share < 100 && share < volume.RolloutPlace(v.entry.worker.uid) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// isAtOnce reports whether a difference between the files and the answer about an object is written at once. That is so if the object is
// refused, allowed again or deleted, or if it is required and the files show nothing of it.
func (v *vol) isAtOnce(ref volume.Ref, got *answers) bool {
	switch has, is := v.files.has(ref), got.at[ref].UID != ""; {
	case got.refused[ref]:
		return has
	case has != is:
		return has || v.files.withdrawn[ref] || !v.binding.spec.isOptional(ref)
	}
	return false
}

// comparison says which files another rendering would change.
type comparison struct {
	// isThere means that the volume has files to keep.
	isThere bool
	files   []volume.File
	// before has the objects of each file that is shown. changing has the objects of each file that would change, in either version.
	before, changing [][]volume.Ref
}

// compare compares the files with a rendering. A nil rendering is unknown and may change any file. The versions file belongs to no object
// and is always written again.
func (v *vol) compare(ctx context.Context, next *payload.Rendering) (found comparison, err error) {
	err = v.files.through(ctx, func(mnt Mount) error {
		changing := map[string][]volume.Ref{}
		if next != nil {
			compared, err := v.files.writer.Compare(ctx, mnt.Root(), next.Payload)
			if err != nil {
				return err
			}
			for _, path := range compared.Differ {
				changing[path] = nil
			}
		}
		if found.files, err = v.files.shownFiles(mnt, v.binding.spec); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		found.isThere = true
		found.add(changing, next, v.binding.spec)
		return nil
	})
	return found, err
}

// add adds the objects of the files. differs has the paths that differ from the next rendering.
func (c *comparison) add(differs map[string][]volume.Ref, next *payload.Rendering, s *spec) {
	stays := map[string]bool{}
	if next == nil { // any file that is made of the same objects may change
		c.changing = append(c.changing, s.together()...)
	} else {
		for i := range next.Files {
			file := &next.Files[i]
			stays[file.Path] = true
			if _, isIn := differs[file.Path]; isIn {
				differs[file.Path] = file.Refs
			}
		}
	}
	for i := range c.files {
		file := &c.files[i]
		c.before = append(c.before, file.Refs)
		if refs, isIn := differs[file.Path]; isIn || !stays[file.Path] {
			differs[file.Path] = slices.Concat(refs, file.Refs)
		}
	}
	delete(differs, s.versionsPath())
	c.changing = slices.AppendSeq(c.changing, maps.Values(differs))
}

// shownFiles returns the files of objects that the volume shows, each marked to be kept. If there are no files at all, the error wraps
// fs.ErrNotExist.
func (f *files) shownFiles(mnt Mount, s *spec) (all []volume.File, err error) {
	g, err := writer.OpenGeneration(mnt.Root(), f.writes, "")
	if err != nil {
		return nil, err
	}
	defer g.Close()
	versions := s.versionsPath()
	err = g.Receipts(func(r writer.Receipt, _ int) error {
		if r.Any {
			r.Refs = s.refs
		}
		if len(r.Refs) > 0 && r.Path != versions {
			all = append(all, volume.File{Path: r.Path, Keep: true, Refs: r.Refs, Size: r.Size})
		}
		return nil
	})
	return all, err
}

// holding returns the answers with some more objects held at these versions; the zero Version means that the files show nothing of the
// object. shown are the files that exist.
func (got *answers) holding(at map[volume.Ref]volume.Version, shown []volume.File) *answers {
	next := *got
	next.at, next.objects = maps.Clone(got.at), maps.Clone(got.objects)
	next.held = payload.Held{At: maps.Clone(at), Files: shown}
	maps.Copy(next.held.At, got.held.At)
	for ref, version := range at {
		next.at.Set(ref, version)
		delete(next.objects, ref)
	}
	return &next
}

// whyHeld returns a failure that names the held objects and the reasons. It counts as a fault if an annotation is not valid, because then
// no pod can take that object.
func (v *vol) whyHeld(got *answers, at map[volume.Ref]volume.Version) *failure {
	place := volume.RolloutPlace(v.entry.worker.uid)
	refs := slices.DeleteFunc(slices.Clone(v.binding.spec.refs), func(ref volume.Ref) bool { _, is := at[ref]; return !is })
	mistakes := slices.DeleteFunc(slices.Clone(refs), func(ref volume.Ref) bool {
		object := got.objects[ref]
		if object == nil {
			return true
		}
		_, isValid := shareOf(object)
		return isValid
	})
	text := enumerate(refs, func(ref volume.Ref) string {
		share, isValid := 100, true
		if object := got.objects[ref]; object != nil {
			share, isValid = shareOf(object)
		}
		switch {
		case !isValid:
			return fmt.Sprintf("has a newer version, and its annotation %s is %q, which is not a percentage such as 10%%: no pod takes it", volume.RolloutAnnotation, got.objects[ref].Rollout)
		case place <= share:
			return "waits for the other objects in its files"
		}
		return fmt.Sprintf("has a newer version for %d%% of the pods, and this pod's place is %d (annotation %s)", share, place, volume.RolloutAnnotation)
	})
	if len(mistakes) > 0 {
		return &failure{err: errors.New(text), event: eventVolumeUpdateFailed, kind: "held by mistake: " + fmt.Sprint(mistakes)}
	}
	return &failure{err: errors.New(text), event: string(ConditionHeld), kind: "held"}
}
