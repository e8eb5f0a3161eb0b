package publisher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// isCurrent reports whether the files are known to show what is known of the objects.
func (v *vol) isCurrent(got *answers) bool {
	return len(got.unknown) == 0 && v.files.isCurrent(got.record(), got.refused)
}

// stage returns the answers, with the objects that wait at the versions that the files show, or nil if nothing of them can be shown. A version
// that changes no file does not wait, so the newest rendering is compared with the files. The files themselves say which objects they show.
// So nothing needs to be remembered, and a restarted plugin decides the same. The decision is kept as long as no answer changes, until the
// pod's moment.
func (v *vol) stage(ctx context.Context, got *answers, before staged) (*answers, *failure) {
	change := v.change(got)
	split := change.Split()
	switch {
	case !v.isMounted && len(split) > 0:
		return nil, awaitSet(split)
	case (!v.isMounted || v.files.torn) && len(got.unknownRefs) > 0: // torn files show no version
		return nil, nil
	case !v.isMounted, v.files.torn:
		return got, nil
	case len(split) > 0:
		v.keepSet(got, change, split)
		return nil, nil
	case len(got.unknownRefs) > 0 && v.losesCanary(got): // what its keys hide may not be known
		return nil, nil
	}
	now := time.Now()
	waits := change.Waits(now)
	switch {
	case len(waits) == 0:
		return got, nil
	case len(got.unknownRefs) > 0 && !v.isNewsKnown(got):
		return nil, nil
	case maps.Equal(before.newest, got.at) && maps.Equal(before.unknown, got.unknownRefs) && (before.Until.IsZero() || now.Before(before.Until)):
		if same := got.holding(before.At, nil); v.isCurrent(same) {
			v.staged = before
			return same, nil
		}
	}
	return v.decide(ctx, got, change, waits)
}

// isNewsKnown reports whether the files may have to change although some objects are not known.
func (v *vol) isNewsKnown(got *answers) bool {
	refs := v.binding.spec.refs
	if len(got.unknownRefs) == len(refs) {
		return false
	}
	return !v.files.verified || !maps.Equal(v.files.withdrawn, got.refused) ||
		slices.ContainsFunc(refs, func(ref volume.Ref) bool {
			return !got.unknownRefs[ref] && (got.at[ref] != v.files.Shown[ref] || got.absent[ref] != v.files.Absent[ref])
		})
}

// losesCanary reports whether the files show a canary that they must not show any more.
func (v *vol) losesCanary(got *answers) bool {
	for ref := range v.binding.spec.canaries {
		if v.files.has(ref) && got.at[ref].UID == "" && !got.unknownRefs[ref] && !got.refused[ref] {
			return true
		}
	}
	return false
}

// decide does the work of stage that needs the files.
func (v *vol) decide(ctx context.Context, got *answers, change *stage.Change, waits map[volume.Ref]stage.Reason) (*answers, *failure) {
	files, isThere, err := v.shownFiles(ctx)
	switch {
	case err != nil, !isThere && len(got.unknownRefs) > 0:
		return nil, v.failed(err)
	case !isThere:
		return got, nil
	}
	unknown := map[volume.Ref]volume.Version{}
	for ref := range got.unknownRefs {
		unknown[ref] = v.files.Shown[ref]
	}
	next, f := v.render(ctx, got.holding(unknown, files))
	if f != nil && (errors.Is(f.err, errCrowded) || ctx.Err() != nil) {
		return nil, f
	}
	changing, err := v.changing(ctx, next, files) // if rendering failed, next is nil and the objects wait too
	if err != nil {
		return nil, v.failed(err)
	}
	decision, ok := change.Decide(waits, stage.Files{
		Shown: refsOfFiles(files), Changing: changing, Now: v.binding.spec.anew(files, v.files.Shown, got.refused, got.unknownRefs),
	})
	switch {
	case !ok:
		return nil, nil
	case len(decision.At) == 0:
		return got, nil
	}
	v.staged = staged{newest: got.at, unknown: got.unknownRefs, Decision: decision}
	v.staged.waits, v.staged.mistake = whyStaged(&decision)
	if change.IsSet { // nothing of a set changes while an object of it waits
		return nil, nil
	}
	return got.holding(decision.At, files), nil
}

// shownFiles returns the files of objects that the volume shows, each marked to be kept. isThere is false if there are no files at all, because
// somebody has removed them.
func (v *vol) shownFiles(ctx context.Context) (all []volume.File, isThere bool, err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return nil, false, err
	}
	defer v.files.giveBack(mnt, &err)
	all, err = v.files.shownFiles(mnt, v.binding.spec)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look at the files of volume %s: %w", v.id, err)
	}
	return all, true, nil
}

// changing returns the objects of each file that a rendering would change, in either version. A nil rendering is unknown and may change any
// file. The versions file belongs to no object and is always written again.
func (v *vol) changing(ctx context.Context, next *payload.Rendering, files []volume.File) ([][]volume.Ref, error) {
	differs, stays := map[string][]volume.Ref{}, map[string]bool{}
	all := [][]volume.Ref{}
	if next == nil { // any file that is made of the same objects may change
		all = v.binding.spec.together()
	} else {
		different, err := v.differ(ctx, next.Payload)
		if err != nil {
			return nil, err
		}
		for _, path := range different {
			differs[path] = nil
		}
		for i := range next.Files {
			file := &next.Files[i]
			stays[file.Path] = true
			if _, isIn := differs[file.Path]; isIn {
				differs[file.Path] = file.Refs
			}
		}
	}
	for i := range files {
		file := &files[i]
		if refs, isIn := differs[file.Path]; isIn || !stays[file.Path] {
			differs[file.Path] = slices.Concat(refs, file.Refs)
		}
	}
	delete(differs, v.binding.spec.versionsPath())
	return slices.AppendSeq(all, maps.Values(differs)), nil
}

// differ returns the paths of the files that a write of a tree would change.
func (v *vol) differ(ctx context.Context, tree *volume.Payload) (paths []string, err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return nil, err
	}
	defer v.files.giveBack(mnt, &err)
	compared, err := v.files.writer.Compare(ctx, mnt.Root(), tree)
	if err != nil {
		return nil, fmt.Errorf("compare the files of volume %s: %w", v.id, err)
	}
	return compared.Differ, nil
}

func refsOfFiles(files []volume.File) (all [][]volume.Ref) {
	for i := range files {
		all = append(all, files[i].Refs)
	}
	return all
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
// object. shown are the files that exist. Objects that are not known must be among them: the answers lack nothing then.
func (got *answers) holding(at map[volume.Ref]volume.Version, shown []volume.File) *answers {
	next := *got
	next.at, next.absent, next.objects, next.unknown = maps.Clone(got.at), maps.Clone(got.absent), maps.Clone(got.objects), nil
	next.held = payload.Held{At: maps.Clone(at), Files: shown}
	maps.Copy(next.held.At, got.held.At)
	for ref, version := range at {
		next.at.Set(ref, version)
		next.absent.Set(ref, got.before.Absent[ref])
		delete(next.objects, ref)
	}
	return &next
}

// whyStaged names the objects that wait, and the reasons. It is a fault if an annotation is not valid, because then no pod can take that
// object. Objects that are not known are reported by themselves.
func whyStaged(d *stage.Decision) (w waits, mistake *failure) {
	var refs, mistakes []volume.Ref
	for _, ref := range slices.SortedFunc(maps.Keys(d.At), volume.CompareRefs) {
		switch d.Why[ref].Kind {
		case stage.Unknown:
		case stage.Mistake:
			mistakes = append(mistakes, ref)
		default:
			refs = append(refs, ref)
		}
	}
	say := func(ref volume.Ref) string { return d.Why[ref].Text }
	if len(mistakes) > 0 {
		mistake = final(0, errors.New(enumerate(mistakes, say)))
		mistake.key = fmt.Sprint("held by mistake: ", mistakes)
	}
	switch {
	case !d.Until.IsZero():
		w.condition = ConditionSpreading
	case d.Has(stage.Share):
		w.condition = ConditionHeld
	default:
		return w, mistake
	}
	w.text, w.until = enumerate(refs, say), d.Until
	return w, mistake
}
