// Package report creates the report of this process's plugin, in the format of pkg/status.
//
// It owns which state of a volume is abnormal. It must not know what causes a volume's state, or who reads the report.
package report

import (
	"cmp"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// Reporter creates reports. All fields except ResyncInterval are required. It is safe for concurrent use if its functions are.
type Reporter struct {
	// Driver, Node and Version describe the plugin.
	Driver, Node, Version string
	// Volumes and Objects are read for each report. Refused returns the recently failed publishes.
	Volumes iter.Seq[publisher.VolumeStatus]
	Objects iter.Seq[manager.ObjectStatus]
	Refused func() []status.Refusal
	// MissingRights returns the names of the rights that the plugin lacks, and NotReady why it is not ready. They must not block.
	MissingRights, NotReady func() []string
	// ResyncInterval is how often objects are requested, or zero if they are watched.
	ResyncInterval time.Duration
}

// Collect returns the present state, the worst volumes first, and if objects are given, only what concerns them: see status.Report. It does
// not block, and holds no lock of its own. What it returns holds what the publisher and the manager report. The rest of the report is created
// while it is read.
func (r *Reporter) Collect(objects []status.ObjectKey) *status.Stream {
	stream := &status.Stream{Header: status.Header{
		APIVersion: status.APIVersion, Kind: status.Kind,
		Driver: r.Driver, Node: r.Node, Version: r.Version, KnowsRollout: true,
		MissingRights: r.MissingRights(), NotReady: r.NotReady(), Refused: r.refused(),
	}}
	asked := map[volume.Ref]bool{}
	for _, o := range objects {
		asked[volume.Ref{Kind: volume.Kind(o.Kind), Namespace: o.Namespace, Name: o.Name}] = true
	}
	// The volumes are read first. So what they show is never newer than the known state of the objects, unless it really is.
	volumes, others := r.volumes(asked)
	known := map[key]*object{}
	for o := range r.Objects {
		known[key{o.Account, o.Ref}] = &object{ObjectStatus: o}
	}
	// ObservedAt is the latest time in the report.
	stream.ObservedAt = time.Now().UTC()
	for _, v := range volumes {
		v.findObjects(known)
		v.abnormal = r.assess(v, stream.ObservedAt)
		v.keepObjects(asked)
	}
	slices.SortFunc(volumes, compare)
	named := number(volumes)
	stream.Objects, stream.Volumes, stream.Others = each(named, (*object).report), each(volumes, (*reportedVolume).report), others
	return stream
}

// each creates what f returns for each element when that is read.
func each[T, R any](all []T, f func(T) R) iter.Seq[R] {
	return func(yield func(R) bool) {
		for _, one := range all {
			if !yield(f(one)) {
				return
			}
		}
	}
}

// refused returns the recently failed publishes, the latest first.
func (r *Reporter) refused() []status.Refusal {
	all := r.Refused()
	for i := range all {
		all[i].Message = cut(all[i].Message, maxReason)
	}
	slices.SortFunc(all, func(a, b status.Refusal) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.VolumeID, b.VolumeID))
	})
	return all
}

// volumes returns the volumes that may concern some objects, or all volumes if there are no objects, and the names of the others.
func (r *Reporter) volumes(asked map[volume.Ref]bool) (volumes []*reportedVolume, others []status.PodVolumes) {
	pods := map[string]int{}
	for v := range r.Volumes {
		name := path.Base(path.Dir(v.Target))
		if len(asked) == 0 || len(v.Refs) == 0 || slices.ContainsFunc(v.Refs, func(ref volume.Ref) bool { return asked[ref] }) {
			volumes = append(volumes, &reportedVolume{VolumeStatus: v, name: name})
			continue
		}
		uid := string(v.Pod.UID)
		place, found := pods[uid]
		if !found {
			place = len(others)
			pods[uid], others = place, append(others, status.PodVolumes{PodUID: uid})
		}
		others[place].Volumes = append(others[place].Volumes, name)
	}
	return volumes, others
}

// compare orders volumes as a report lists them.
func compare(a, b *reportedVolume) int {
	x, y := a.summary(), b.summary()
	return status.Compare(&x, &y)
}

// number numbers the objects that volumes name, and the versions that they show or that are absent. It returns the objects.
func number(volumes []*reportedVolume) (all []*object) {
	type shown struct {
		object *object
		volume.Version
	}
	versions, isShown := map[shown]int{}, map[shown]bool{}
	for _, v := range volumes {
		for i := range v.objects {
			o := &v.objects[i]
			if !o.numbered {
				o.numbered, o.index = true, len(all)
				all = append(all, o.object)
			}
			version := cmp.Or(v.Shown[o.Ref], v.Absent[o.Ref])
			if version == (volume.Version{}) {
				continue
			}
			id := shown{o.object, version}
			place, found := versions[id]
			if !found {
				place = len(o.versions)
				versions[id], o.versions = place, append(o.versions, shownVersion{Version: version}) // nobody needs the revision of an absent one
			}
			if o.version = place; v.Shown[o.Ref] != version {
				continue
			}
			revision, isKnown := v.Revision(o.Ref)
			switch at := &o.versions[place].revision; {
			case isKnown && (!isShown[id] || revision != "" || *at == unknownRevision):
				*at = revision
			case !isKnown && !isShown[id]:
				*at = unknownRevision
			}
			isShown[id] = true
		}
	}
	return all
}

const (
	// patience is how long a volume may be in a temporary condition, and how old the last proof of a stale object may be.
	patience = 5 * time.Minute
	// startPatience is how long a pod may wait for a split set.
	startPatience = time.Minute
)

// assess returns why somebody should look at a volume, or "".
//
//   - A condition with the name of an event is a fault.
//   - Unknown, Publishing, Stale and Split are temporary. The kubelet gives a publish two minutes, and brings tokens within
//     one and a half minutes after a restart, so a token that is missing meanwhile is no fault. While a set is split, pods don't start.
//   - Pinned promises nothing about changes, and Spreading and Held were requested.
//   - Current describes the plugin's knowledge. That is too old if there was no proof for a long time, and the watch or the
//     requests fail. An immutable object is not followed.
func (r *Reporter) assess(v *reportedVolume, now time.Time) string {
	switch v.Condition {
	case publisher.ConditionPinned:
		return ""
	case publisher.ConditionUnknown, publisher.ConditionPublishing, publisher.ConditionStale, publisher.ConditionSplit:
		most := patience
		if v.Condition == publisher.ConditionSplit && v.Bytes == 0 {
			most = startPatience
		}
		if now.Sub(v.Since) <= most {
			return ""
		}
		return cmp.Or(v.Reason, fmt.Sprintf("the condition should have passed: it is %s since %s", v.Condition, instant(v.Since)))
	case publisher.ConditionCurrent, publisher.ConditionSpreading, publisher.ConditionHeld:
		if v.WithoutToken {
			return "the pod's service account has no usable token, so no change of an object can arrive"
		}
		return r.stale(v.objects, now)
	}
	return cmp.Or(v.Reason, string(v.Condition))
}

// stale returns a text about the stale object with the oldest proof, if that is too old.
func (r *Reporter) stale(objects []namedObject, now time.Time) string {
	// Objects that are requested at each resync are proven only that often. One round may fail.
	proven := now.Add(-patience - 2*r.ResyncInterval)
	objects = slices.DeleteFunc(slices.Clone(objects), func(o namedObject) bool { return !o.Stale || !o.provenAt().Before(proven) })
	if len(objects) == 0 {
		return ""
	}
	oldest := slices.MinFunc(objects, func(a, b namedObject) int { return a.provenAt().Compare(b.provenAt()) })
	reason := fmt.Sprintf("%s: nothing has proven since %s that it has not changed", oldest.Ref, instant(oldest.provenAt()))
	if len(objects) > 1 {
		reason += fmt.Sprintf(", and the same of %d more", len(objects)-1)
	}
	return reason
}

// provenAt returns when an object was last proven current. For an object that was never proven, it returns the time of the first reference.
func (o *object) provenAt() time.Time {
	if o.LastConfirmed.IsZero() {
		return o.Since
	}
	return o.LastConfirmed
}

// instant formats a time for a reason, so that the text is the same in each report.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }
