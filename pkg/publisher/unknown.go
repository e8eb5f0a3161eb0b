package publisher

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/refvol/refvol/pkg/volume"
)

// keepUnknown returns the answers with the objects whose state is not known at the versions that the files show, so that the other objects
// can be updated. Objects that share a file with them stay too. It returns nil if no file can change for what is known, if a combined file
// of them is missing, or if it is not known what the files show. An object of such a file that the pod may no longer read must go at once:
// then the whole volume waits, and withdraw removes the file.
func (v *vol) keepUnknown(ctx context.Context, got *answers) (*answers, *failure) {
	shown := v.files.shown
	if !v.entry.isMounted() || v.files.torn || len(got.unknownRefs) == len(v.binding.spec.refs) {
		return nil, nil
	}
	isSame := func(ref volume.Ref) bool { return got.unknownRefs[ref] || got.at[ref] == shown[ref] }
	if v.files.verified && maps.Equal(v.files.withdrawn, got.refused) && !slices.ContainsFunc(v.binding.spec.refs, func(ref volume.Ref) bool { return !isSame(ref) }) {
		return nil, nil
	}
	var files []volume.File
	err := v.files.through(ctx, func(mnt Mount) (err error) {
		files, err = v.files.shownFiles(mnt, v.binding.spec)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist): // somebody removed them, or nothing was ever written
		return nil, nil
	case err != nil:
		return nil, v.filesFailed(err)
	}
	if v.binding.spec.lacksFile(got.unknownRefs, files) {
		return nil, nil
	}
	groups := v.binding.spec.together()
	for i := range files {
		groups = append(groups, files[i].Refs)
	}
	for i, refs := range groups {
		groups[i] = slices.DeleteFunc(slices.Clone(refs), func(ref volume.Ref) bool { return !got.unknownRefs[ref] && isSame(ref) && !got.refused[ref] })
	}
	kept := maps.Clone(got.unknownRefs)
	join(kept, groups)
	at := map[volume.Ref]volume.Version{}
	for ref, is := range kept {
		if is && got.refused[ref] && !v.files.withdrawn[ref] {
			return nil, nil
		}
		if is && !got.refused[ref] {
			at[ref] = shown[ref]
		}
	}
	next := got.holding(at, files)
	next.unknown, next.unknownRefs = nil, nil
	return next, nil
}
