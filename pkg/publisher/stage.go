package publisher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// isCurrent reports whether the files are known to show what is known of the objects.
func (v *vol) isCurrent(got *binding.Answers) bool {
	return len(got.Unknown) == 0 && v.files.isCurrent(got.Record(), got.Refused)
}

// stage returns the answers, with the objects that wait at the versions that the files show, or nil if nothing of them can be shown. A version
// that changes no file does not wait, so the newest rendering is compared with the files. The files themselves say which objects they show.
// So nothing needs to be remembered, and a restarted plugin decides the same. The decision is kept as long as no answer changes, until the
// pod's moment.
func (v *vol) stage(ctx context.Context, got *binding.Answers, before staged) (*binding.Answers, *failure.Failure) {
	change := v.change(got)
	split := change.Split()
	switch {
	case !v.isMounted && len(split) > 0:
		return nil, awaitSet(split)
	case (!v.isMounted || v.files.torn) && len(got.UnknownRefs) > 0: // torn files show no version
		return nil, nil
	case !v.isMounted, v.files.torn:
		return got, nil
	case len(split) > 0:
		v.keepSet(got, change, split)
		return nil, nil
	case len(got.UnknownRefs) > 0 && v.losesCanary(got): // what its keys hide may not be known
		return nil, nil
	}
	now := time.Now()
	waits := change.Waits(now)
	switch {
	case len(waits) == 0:
		return got, nil
	case len(got.UnknownRefs) > 0 && !v.isNewsKnown(got):
		return nil, nil
	case maps.Equal(before.newest, got.At) && maps.Equal(before.unknown, got.UnknownRefs) && (before.Until.IsZero() || now.Before(before.Until)):
		if same := got.Holding(before.At, nil); v.isCurrent(same) {
			v.staged = before
			return same, nil
		}
	}
	return v.decide(ctx, got, change, waits)
}

// isNewsKnown reports whether the files may have to change although some objects are not known.
func (v *vol) isNewsKnown(got *binding.Answers) bool {
	refs := v.binding.Spec().Refs
	if len(got.UnknownRefs) == len(refs) {
		return false
	}
	return !v.files.verified || !maps.Equal(v.files.withdrawn, got.Refused) ||
		slices.ContainsFunc(refs, func(ref volume.Ref) bool {
			return !got.UnknownRefs[ref] && (got.At[ref] != v.files.Shown[ref] || got.Absent[ref] != v.files.Absent[ref])
		})
}

// losesCanary reports whether the files show a canary that they must not show any more.
func (v *vol) losesCanary(got *binding.Answers) bool {
	for ref := range v.binding.Spec().Canaries {
		if v.files.has(ref) && got.At[ref].UID == "" && !got.UnknownRefs[ref] && !got.Refused[ref] {
			return true
		}
	}
	return false
}

// decide does the work of stage that needs the files.
func (v *vol) decide(ctx context.Context, got *binding.Answers, change *stage.Change, waits map[volume.Ref]stage.Reason) (*binding.Answers, *failure.Failure) {
	files, isThere, err := v.shownFiles(ctx)
	switch {
	case err != nil, !isThere && len(got.UnknownRefs) > 0:
		return nil, v.failed(err)
	case !isThere:
		return got, nil
	}
	unknown := map[volume.Ref]volume.Version{}
	for ref := range got.UnknownRefs {
		unknown[ref] = v.files.Shown[ref]
	}
	next, f := v.render(ctx, got.Holding(unknown, files))
	if f != nil && (errors.Is(f.Err, failure.ErrCrowded) || ctx.Err() != nil) {
		return nil, f
	}
	changing, err := v.changing(ctx, next, files) // if rendering failed, next is nil and the objects wait too
	if err != nil {
		return nil, v.failed(err)
	}
	decision, ok := change.Decide(waits, stage.Files{
		Shown: refsOfFiles(files), Changing: changing, Now: v.binding.Spec().MustRewrite(files, v.files.Shown, got.Refused, got.UnknownRefs),
		Possible: v.binding.Spec().RefsBySource(),
	})
	switch {
	case !ok:
		return nil, nil
	case len(decision.At) == 0:
		return got, nil
	}
	v.staged = staged{newest: got.At, unknown: got.UnknownRefs, Decision: decision}
	v.staged.waits, v.staged.mistake = whyStaged(&decision)
	if change.IsSet { // nothing of a set changes while an object of it waits
		return nil, nil
	}
	return got.Holding(decision.At, files), nil
}

// shownFiles returns the files of objects that the volume shows, each marked to be kept. isThere is false if there are no files at all, because
// somebody has removed them.
func (v *vol) shownFiles(ctx context.Context) (all []volume.File, isThere bool, err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return nil, false, err
	}
	defer v.files.giveBack(mnt, &err)
	all, err = v.files.shownFiles(mnt, v.binding.Spec())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look at the files of volume %s: %w", v.ID, err)
	}
	return all, true, nil
}

// changing returns the objects of each file that a rendering would change, in either version. A nil rendering is unknown and may change any
// file. The versions file belongs to no object and is always written again.
func (v *vol) changing(ctx context.Context, next *payload.Rendering, files []volume.File) ([][]volume.Ref, error) {
	differs, stays := map[string][]volume.Ref{}, map[string]bool{}
	all := [][]volume.Ref{}
	if next == nil { // any file that is made of the same objects may change
		all = v.binding.Spec().RefsBySource()
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
	delete(differs, v.binding.Spec().VersionsPath())
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
		return nil, fmt.Errorf("compare the files of volume %s: %w", v.ID, err)
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
func (f *files) shownFiles(mnt Mount, s *binding.Spec) (all []volume.File, err error) {
	g, err := writer.OpenGeneration(mnt.Root(), f.writes, "")
	if err != nil {
		return nil, err
	}
	defer g.Close()
	versions := s.VersionsPath()
	err = g.Receipts(func(r writer.Receipt, _ int) error {
		if r.Any {
			r.Refs = s.Refs
		}
		if len(r.Refs) > 0 && r.Path != versions {
			all = append(all, volume.File{Path: r.Path, Keep: true, Refs: r.Refs, Size: r.Size})
		}
		return nil
	})
	return all, err
}

// whyStaged names the objects that wait, and the reasons. It is a fault if an annotation is not valid, because then no pod can take that
// object. Objects that are not known are reported by themselves.
func whyStaged(d *stage.Decision) (w waits, mistake *failure.Failure) {
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
		mistake = failure.Final(0, errors.New(enumerate(mistakes, say)))
		mistake.Key = fmt.Sprint("held by mistake: ", mistakes)
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
