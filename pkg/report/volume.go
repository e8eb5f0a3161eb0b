package report

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// Limits of texts, in bytes. One path may be that of all files of a volume, so without limits the same long text would be repeated.
const (
	maxReason = 1024
	maxPath   = 128
)

// maxUnopened limits the paths of an object in a volume.
const maxUnopened = 8

// key is an object as the manager keeps it: once for each account if it is read with pods' rights, or else with the zero account.
type key struct {
	account volume.ServiceAccount
	ref     volume.Ref
}

// object is an object that volumes name.
type object struct {
	manager.ObjectStatus

	// index is its place in the report, once it is numbered.
	numbered bool
	index    int
	// versions are the versions that volumes show.
	versions []shownVersion
}

// unknownRevision stands for the revision of a version of which no volume knows it.
const unknownRevision volume.Revision = "unknown"

// shownVersion is a version that volumes show, and its revision.
type shownVersion struct {
	volume.Version

	revision volume.Revision
}

// reportedVolume is a volume of a report.
type reportedVolume struct {
	publisher.VolumeStatus

	name string
	// abnormal says why somebody should look at the volume, or is "".
	abnormal string
	objects  []namedObject
}

// namedObject is an object that a volume names.
type namedObject struct {
	*object

	// version is the place of the version that the volume shows, or that says that the object is absent for the pod, if there is one.
	version int
}

// errNotFollowed says why nothing is known about an object that a volume names: the pod may not read it, or it is being registered.
var errNotFollowed = errors.New("the plugin does not ask for it")

// findObjects sets the volume's objects. It adds objects of which nothing is known.
func (v *reportedVolume) findObjects(known map[key]*object) {
	v.objects = make([]namedObject, 0, len(v.Refs))
	for _, ref := range v.Refs {
		o := cmp.Or(known[key{v.Pod.Account(), ref}], known[key{ref: ref}])
		if o == nil {
			o = &object{ObjectStatus: manager.ObjectStatus{Ref: ref, State: manager.Unknown, Err: errNotFollowed}}
			known[key{ref: ref}] = o
		}
		v.objects = append(v.objects, namedObject{object: o})
	}
}

// keepObjects removes all objects but those that are asked for. If none are, or the volume may not be mounted, it removes none, because all objects
// together show whether it is mounted.
func (v *reportedVolume) keepObjects(asked map[volume.Ref]bool) {
	if len(asked) > 0 && v.Bytes > 0 {
		v.objects = slices.DeleteFunc(v.objects, func(o namedObject) bool { return !asked[o.Ref] })
	}
}

// summary returns the volume's report without its objects.
func (v *reportedVolume) summary() status.Volume {
	return status.Volume{
		VolumeID: v.VolumeID, Name: v.name,
		Pod:       status.Pod{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: string(v.Pod.UID)},
		Condition: string(v.Condition), Reason: cmp.Or(v.abnormal, v.Reason), Abnormal: v.abnormal != "",
		Since: v.Since.UTC(), Bytes: v.Bytes, WithoutToken: v.WithoutToken,
	}
}

func (v *reportedVolume) report() *status.Volume {
	out := v.summary()
	out.Reason, out.Objects = cut(out.Reason, maxReason), make([]status.VolumeObject, 0, len(v.objects))
	for i := range v.objects {
		o := &v.objects[i]
		named := status.VolumeObject{Index: o.index}
		if v.Shown[o.Ref] != (volume.Version{}) {
			named.ShownIndex = &o.version
			v.addReceipts(&named, o.Ref)
			if receipts := v.Opened[o.Ref]; receipts != nil {
				out.OpenedReason = cmp.Or(out.OpenedReason, cut(receipts.Reason, maxReason)) // the same for all objects
			}
		} else {
			named.Withdrawn = v.Withdrawn[o.Ref]
			if v.Absent[o.Ref] != (volume.Version{}) {
				named.AbsentIndex = &o.version
			}
		}
		out.Objects = append(out.Objects, named)
	}
	return &out
}

// addReceipts sets whether a shown object was opened.
func (v *reportedVolume) addReceipts(out *status.VolumeObject, ref volume.Ref) {
	receipts := v.Opened[ref]
	if receipts != nil && !receipts.Since.IsZero() {
		out.ShownSince = new(receipts.Since.UTC())
	}
	switch state := v.OpenState(ref); {
	case state != opened.Yes:
		out.Opened = string(state)
	case receipts.At.IsZero(): // it has no file
		out.OpenedAt = new(v.Since.UTC())
	default:
		out.OpenedAt = new(receipts.At.UTC())
	}
	if receipts != nil && out.Opened != string(opened.Unsupported) {
		for _, path := range receipts.Unopened[:min(maxUnopened, len(receipts.Unopened))] {
			out.Unopened = append(out.Unopened, cut(path, maxPath))
		}
		out.UnopenedCount = receipts.Count
	}
}

func (o *object) report() *status.Object {
	out := &status.Object{
		Kind: string(o.Ref.Kind), Namespace: o.Ref.Namespace, Name: o.Ref.Name,
		State: string(o.State), Followed: o.Watched, OlderAnswer: o.olderAnswer(), Immutable: o.Immutable, Canary: cut(o.Canary, maxPath),
	}
	if o.Account != (volume.ServiceAccount{}) {
		out.ServiceAccount = o.Account.String()
	}
	if o.Err != nil {
		out.Reason = cut(o.Err.Error(), maxReason)
	}
	if !o.LastConfirmed.IsZero() {
		out.ProvenAt = new(o.LastConfirmed.UTC())
	}
	for _, v := range o.versions {
		shown := version(v.Version)
		shown.Revision = string(v.revision)
		out.Versions = append(out.Versions, *shown)
	}
	return out
}

// olderAnswer returns the answer that the manager refuses. A manager that started after the files were written does not know what they
// show, so its own state may be older than that.
func (o *object) olderAnswer() *status.OlderAnswer {
	answer := o.OlderAnswer
	if answer == nil {
		newest := o.Version.ResourceVersion
		for _, shown := range o.versions {
			if manager.IsOlder(newest, shown.ResourceVersion) {
				newest = shown.ResourceVersion
			}
		}
		if newest == o.Version.ResourceVersion {
			return nil
		}
		answer = &manager.OlderAnswer{Object: o.Version, ResourceVersion: o.Version.ResourceVersion, Known: newest}
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

// cut returns a text, or the beginning of a longer one with a mark. most is in bytes and includes the mark.
func cut(text string, most int) string {
	const mark = "…"
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark
}
