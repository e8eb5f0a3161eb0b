package publisher

import (
	"slices"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// shareOf returns the percentage of the pods that may take an object's newest version. isValid says that its annotation is
// understood: nobody may take what comes with another one.
func shareOf(o *volume.Object) (percent int, isValid bool) {
	if o.Immutable { // nobody would hear of a larger share
		return 100, true
	}
	return volume.ParseShare(o.Rollout)
}

// held is what a volume does not take yet, as its pod is not of the share in an object's annotation; the zero value is nothing.
type held struct {
	// newest are the versions for which that was decided, and at what the files go on to show of some.
	newest, at record.Versions
	// failure says so.
	failure *failure
}

// rollout is what decides which objects a volume goes on to show as they were.
type rollout struct {
	// shown are the versions in the files, and newest those that are known.
	shown, newest record.Versions
	// waiting are the objects of which the pod may not take the newest version, and atOnce those whose change waits for nothing.
	waiting []volume.Ref
	atOnce  map[volume.Ref]bool
	// before has the objects of each file that is shown, and changing those of each that the newest versions change.
	before, changing [][]volume.Ref
}

// held returns the objects that are held, each with its version in the files: those of which a file would change. Objects of
// one file are held together, so the record goes on to say what is in each file. If the file must change for one of them, none
// of them is held.
//
// What the files can't tell: a key of an object that is held may have been behind the same key of another object, in no file.
// It may be missing once the other key is gone.
func (r *rollout) held() record.Versions {
	changing := r.changed(r.changing)
	free, isHeld := map[volume.Ref]bool{}, map[volume.Ref]bool{}
	for ref, now := range r.atOnce {
		free[ref] = now
	}
	join(free, changing)
	for _, ref := range r.waiting {
		isHeld[ref] = !free[ref] && slices.ContainsFunc(changing, func(refs []volume.Ref) bool { return slices.Contains(refs, ref) })
	}
	join(isHeld, slices.Concat(changing, r.changed(r.before)))
	at := record.Versions{}
	for ref, is := range isHeld {
		if is && !free[ref] {
			at[ref] = r.shown[ref]
		}
	}
	return at
}

// changed returns the objects of each file of which there is another version: the others can be shown in any case.
func (r *rollout) changed(files [][]volume.Ref) [][]volume.Ref {
	all := make([][]volume.Ref, 0, len(files))
	for _, refs := range files {
		all = append(all, slices.DeleteFunc(slices.Clone(refs), func(ref volume.Ref) bool {
			return r.newest[ref] == r.shown[ref] && !r.atOnce[ref]
		}))
	}
	return all
}

// join adds to a set all of each group that has one in it, over and over.
func join(set map[volume.Ref]bool, groups [][]volume.Ref) {
	isIn := func(ref volume.Ref) bool { return set[ref] }
	isOut := func(ref volume.Ref) bool { return !set[ref] }
	for again := true; again; {
		again = false
		for _, refs := range groups {
			if !slices.ContainsFunc(refs, isIn) || !slices.ContainsFunc(refs, isOut) {
				continue
			}
			again = true
			for _, ref := range refs {
				set[ref] = true
			}
		}
	}
}
