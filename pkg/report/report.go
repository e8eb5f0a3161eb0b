// Package report creates the report of this process's plugin, in the format of pkg/status.
//
// It owns which state of a volume is abnormal. It must not know what causes a volume's state, or who reads the report.
package report

import (
	"cmp"
	"errors"
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

// Report returns the present state, the worst volumes first. It does not block, and holds no lock of its own.
func (r *Reporter) Report() *status.Report {
	report := &status.Report{
		APIVersion: status.APIVersion, Kind: status.Kind,
		Driver: r.Driver, Node: r.Node, Version: r.Version, KnowsRollout: true,
		MissingRights: r.MissingRights(), NotReady: r.NotReady(), Refused: r.Refused(),
		Volumes: []status.Volume{},
	}
	// The volumes are read first. So what they show is never newer than the known state of the objects, unless it really is.
	volumes := slices.Collect(r.Volumes)
	known := map[key]manager.ObjectStatus{}
	for o := range r.Objects {
		known[key{o.Account, o.Ref}] = o
	}
	// ObservedAt is the latest time in the report.
	report.ObservedAt = time.Now().UTC()
	for i := range volumes {
		report.Volumes = append(report.Volumes, r.volume(&volumes[i], known, report.ObservedAt))
	}
	slices.SortFunc(report.Refused, func(a, b status.Refusal) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.VolumeID, b.VolumeID))
	})
	slices.SortFunc(report.Volumes, func(a, b status.Volume) int { return status.Compare(&a, &b) })
	return report
}

// key is an object as the manager keeps it: once for each account if it is read with pods' rights, or else with the zero account.
type key struct {
	account volume.ServiceAccount
	ref     volume.Ref
}

// errNotFollowed says why nothing is known about an object that a volume names: the pod may not read it, or it is being registered.
var errNotFollowed = errors.New("the plugin does not ask for it")

func (r *Reporter) volume(v *publisher.VolumeStatus, known map[key]manager.ObjectStatus, now time.Time) status.Volume {
	objects := make([]manager.ObjectStatus, 0, len(v.Refs))
	for _, ref := range v.Refs {
		o, ok := known[key{v.Pod.Account(), ref}]
		if !ok {
			o, ok = known[key{ref: ref}]
		}
		if !ok {
			o = manager.ObjectStatus{Ref: ref, State: manager.Unknown, Err: errNotFollowed}
		}
		objects = append(objects, o)
	}
	found := r.assess(v, objects, now)
	out := status.Volume{
		VolumeID: v.VolumeID, Name: path.Base(path.Dir(v.Target)),
		Pod:       status.Pod{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: string(v.Pod.UID)},
		Condition: string(v.Condition), Reason: cmp.Or(found, v.Reason), Unhealthy: found != "",
		Since: v.Since.UTC(), Bytes: v.Bytes, WithoutToken: v.WithoutToken,
		Objects: make([]status.Object, 0, len(objects)),
	}
	for i := range objects {
		o := object(&objects[i], v.Shown[objects[i].Ref])
		if o.Shown != nil {
			addReceipts(&o, v, objects[i].Ref)
		}
		o.Withdrawn = o.Shown == nil && v.Withdrawn[objects[i].Ref]
		out.Objects = append(out.Objects, o)
	}
	return out
}

func object(o *manager.ObjectStatus, shown volume.Version) status.Object {
	out := status.Object{
		Kind: string(o.Ref.Kind), Namespace: o.Ref.Namespace, Name: o.Ref.Name,
		State: string(o.State), Watched: o.Watched, Shown: version(shown),
	}
	if o.Err != nil {
		out.Reason = o.Err.Error()
	}
	if !o.LastConfirmed.IsZero() {
		out.LastConfirmed = new(o.LastConfirmed.UTC())
	}
	out.OlderAnswer = olderAnswer(o, shown)
	return out
}

// olderAnswer returns the answer that the manager refuses. A manager that started after the files were written does not know what they
// show, so its own state may be older than that.
func olderAnswer(o *manager.ObjectStatus, shown volume.Version) *status.OlderAnswer {
	answer := o.OlderAnswer
	if answer == nil && manager.IsOlder(o.Version.ResourceVersion, shown.ResourceVersion) {
		answer = &manager.OlderAnswer{Object: o.Version, ResourceVersion: o.Version.ResourceVersion, Known: shown.ResourceVersion}
	}
	if answer == nil {
		return nil
	}
	return &status.OlderAnswer{Object: version(answer.Object), ResourceVersion: answer.ResourceVersion, Known: answer.Known}
}

// version returns v, or nil for an object that does not exist.
func version(v volume.Version) *status.Version {
	if v == (volume.Version{}) {
		return nil
	}
	return &status.Version{UID: string(v.UID), ResourceVersion: v.ResourceVersion}
}

// addReceipts sets whether a shown object was opened.
func addReceipts(out *status.Object, v *publisher.VolumeStatus, ref volume.Ref) {
	opened := v.Opened[ref]
	if opened != nil && !opened.Since.IsZero() {
		out.ShownSince = new(opened.Since.UTC())
	}
	switch state := v.OpenState(ref); {
	case state != publisher.OpenYes:
		out.Opened = string(state)
	case opened.At.IsZero(): // it has no file
		out.OpenedAt = new(v.Since.UTC())
	default:
		out.OpenedAt = new(opened.At.UTC())
	}
	if opened != nil {
		out.OpenedReason = opened.Reason
	}
	if opened != nil && out.Opened != string(publisher.OpenUnsupported) {
		out.Unopened, out.UnopenedCount = opened.Unopened, opened.Count
	}
}

// patience is how long a volume may be in a temporary condition, and how old the last proof of a stale object may be.
const patience = 5 * time.Minute

// assess returns why somebody should look at a volume, or "".
//
//   - A condition with the name of an event is a fault.
//   - Unknown and Publishing are temporary. The kubelet gives a publish two minutes, and brings tokens within
//     one and a half minutes after a restart, so a token that is missing meanwhile is no fault.
//   - Pinned promises nothing about changes, and Spreading and Held were requested.
//   - Current describes the plugin's knowledge. That is too old if there was no proof for a long time, and the watch or the
//     requests fail. An immutable object is not followed.
func (r *Reporter) assess(v *publisher.VolumeStatus, objects []manager.ObjectStatus, now time.Time) string {
	switch v.Condition {
	case publisher.ConditionPinned:
		return ""
	case publisher.ConditionUnknown, publisher.ConditionPublishing:
		if now.Sub(v.Since) <= patience {
			return ""
		}
		return cmp.Or(v.Reason, fmt.Sprintf("the condition should have passed: it is %s since %s", v.Condition, instant(v.Since)))
	case publisher.ConditionCurrent, publisher.ConditionSpreading, publisher.ConditionHeld:
		if v.WithoutToken {
			return "the pod's service account has no usable token, so no change of an object can arrive"
		}
		return r.stale(objects, now)
	}
	return cmp.Or(v.Reason, string(v.Condition))
}

// stale returns a text about the stale object with the oldest proof, if that is too old.
func (r *Reporter) stale(objects []manager.ObjectStatus, now time.Time) string {
	// Objects that are requested at each resync are proven only that often. One round may fail.
	proven := now.Add(-patience - 2*r.ResyncInterval)
	objects = slices.DeleteFunc(slices.Clone(objects), func(o manager.ObjectStatus) bool { return !o.Stale || !provenAt(&o).Before(proven) })
	if len(objects) == 0 {
		return ""
	}
	oldest := slices.MinFunc(objects, func(a, b manager.ObjectStatus) int { return provenAt(&a).Compare(provenAt(&b)) })
	reason := fmt.Sprintf("%s: nothing has proven since %s that it has not changed", oldest.Ref, instant(provenAt(&oldest)))
	if len(objects) > 1 {
		reason += fmt.Sprintf(", and the same of %d more", len(objects)-1)
	}
	return reason
}

// provenAt returns when an object was last proven current. For an object that was never proven, it returns the time of the first reference.
func provenAt(o *manager.ObjectStatus) time.Time {
	if o.LastConfirmed.IsZero() {
		return o.Since
	}
	return o.LastConfirmed
}

// instant formats a time for a reason, so that the text is the same in each report.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }
