package publisher

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
)

// change returns what the answers change in the files, for stage.
func (v *vol) change(got *binding.Answers) *stage.Change {
	spec := v.binding.Spec()
	c := &stage.Change{
		Shown: v.files.Shown, Newest: got.At, Objects: got.Objects, Unknown: got.UnknownRefs, IsOptional: spec.IsOptional, Canaries: spec.Canaries,
		Place: volume.RolloutPlace(v.UID), Clock: v.clock, IsSet: spec.SameRevision,
	}
	if !c.IsSet || spec.RemoveDeleted() {
		return c
	}
	c.Deleted = map[volume.Ref]bool{}
	for _, ref := range spec.Refs {
		if v.files.has(ref) && got.At[ref].UID == "" && !got.Refused[ref] && !got.UnknownRefs[ref] && !spec.IsOptional(ref) {
			c.Deleted[ref] = true
		}
	}
	return c
}

// awaitSet returns the failure of a new volume whose objects have different revisions. It waits for a change of an object.
func awaitSet(split map[volume.Ref]stage.Reason) *failure.Failure {
	f := failure.Outdated(failure.ReasonUnavailable, fmt.Errorf("%s: %s", splitText, enumerateReasons(split)))
	f.Event, f.Key = string(ConditionSplit), string(ConditionSplit)
	return f
}

// keepSet has a mounted volume wait as a whole, because its objects have different revisions. An annotation that is not valid, and a deleted
// object whose files stay, are faults beside that.
func (v *vol) keepSet(got *binding.Answers, c *stage.Change, split map[volume.Ref]stage.Reason) {
	v.staged = staged{newest: got.At, unknown: got.UnknownRefs}
	v.staged.waits = waits{condition: ConditionSplit, text: splitText + ": " + enumerateReasons(split)}
	mistakes := maps.Clone(split)
	maps.DeleteFunc(mistakes, func(ref volume.Ref, reason stage.Reason) bool { return reason.Kind != stage.Mistake && !c.Deleted[ref] })
	if len(mistakes) == 0 {
		return
	}
	f := failure.Final(0, errors.New(enumerateReasons(mistakes)))
	if f.Key = f.Error(); len(c.Deleted) > 0 {
		f.Reason, f.Event = failure.ReasonNotFound, failure.RefDeleted
	}
	v.staged.mistake = f
}

const splitText = "the objects of the volume must carry the same " + volume.RevisionAnnotation

func enumerateReasons(all map[volume.Ref]stage.Reason) string {
	return enumerate(slices.SortedFunc(maps.Keys(all), volume.CompareRefs), func(ref volume.Ref) string { return all[ref].Text })
}
