// Package report makes the report of this process's plugin, in the format of pkg/status.
//
// It owns which state of a volume is abnormal. It must not know what makes a volume's state, nor who
// reads the report.
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

// Options are what a Reporter needs. All but ResyncInterval are required.
type Options struct {
	// Driver, Node and Version are the plugin's own.
	Driver, Node, Version string
	// Volumes and Objects are gone through for each report.
	Volumes iter.Seq[publisher.VolumeStatus]
	Objects iter.Seq[manager.ObjectStatus]
	// Refused is gone through for each report.
	Refused iter.Seq[status.Refusal]
	// MissingRights returns the names of the rights that the plugin lacks, and NotReady why it is not ready. They wait for
	// nothing.
	MissingRights, NotReady func() []string
	// ResyncInterval is how often objects are asked for, zero if they are watched.
	ResyncInterval time.Duration
}

func (o *Options) validate() error {
	if o.Driver == "" || o.Node == "" || o.Version == "" || o.Volumes == nil || o.Objects == nil || o.Refused == nil || o.MissingRights == nil || o.NotReady == nil {
		return errors.New("Driver, Node, Version, Volumes, Objects, Refused, MissingRights, NotReady: Required value")
	}
	if o.ResyncInterval < 0 {
		return fmt.Errorf("ResyncInterval: Invalid value: %s: must not be negative", o.ResyncInterval)
	}
	return nil
}

// Reporter makes reports. It is safe for concurrent use.
type Reporter struct{ opts Options }

// New returns a Reporter. It fails if opts are not valid.
func New(opts Options) (*Reporter, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("report options: %w", err)
	}
	return &Reporter{opts}, nil
}

// Report returns the state of this moment, the worst volumes first. It waits for nothing, and holds
// no lock that is not its own.
func (r *Reporter) Report() *status.Report {
	report := &status.Report{
		APIVersion: status.APIVersion, Kind: status.Kind,
		Driver: r.opts.Driver, Node: r.opts.Node, Version: r.opts.Version,
		MissingRights: r.opts.MissingRights(), NotReady: r.opts.NotReady(),
		Volumes:       []status.Volume{},
	}
	known := map[key]manager.ObjectStatus{}
	for o := range r.opts.Objects {
		known[key{o.Account, o.Ref}] = o
	}
	volumes := slices.Collect(r.opts.Volumes)
	// No time in the report is later.
	report.ObservedAt = time.Now().UTC()
	for i := range volumes {
		report.Volumes = append(report.Volumes, r.volume(&volumes[i], known, report.ObservedAt))
	}
	for f := range r.opts.Refused {
		f.Message, f.At = line(f.Message), f.At.UTC()
		report.Refused = append(report.Refused, f)
	}
	slices.SortFunc(report.Refused, func(a, b status.Refusal) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.VolumeID, b.VolumeID))
	})
	slices.SortFunc(report.Volumes, func(a, b status.Volume) int { return status.Compare(&a, &b) })
	return report
}

// key is an object as the manager keeps it: once for each account if pods' rights read it, else with
// the zero account.
type key struct {
	account volume.ServiceAccount
	ref     volume.Ref
}

// errNotFollowed is why nothing is known of an object that a volume names, but that the manager does
// not have: the pod may not have it, or it is registered just now.
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
		Condition: string(v.Condition), Reason: line(cmp.Or(found, v.Reason)), Unhealthy: found != "",
		Since: v.Since.UTC(), Bytes: v.Bytes, WithoutToken: v.WithoutToken,
		Objects: make([]status.Object, 0, len(objects)),
	}
	for i := range objects {
		out.Objects = append(out.Objects, object(&objects[i], v.Shown[objects[i].Ref]))
	}
	return out
}

func object(o *manager.ObjectStatus, shown volume.Version) status.Object {
	out := status.Object{
		Kind: string(o.Ref.Kind), Namespace: o.Ref.Namespace, Name: o.Ref.Name,
		State: string(o.State), Watched: o.Watched,
	}
	if shown != (volume.Version{}) {
		out.Shown = &status.Version{UID: string(shown.UID), ResourceVersion: shown.ResourceVersion}
	}
	if o.Err != nil {
		out.Reason = line(o.Err.Error())
	}
	if !o.LastConfirmed.IsZero() {
		out.LastConfirmed = new(o.LastConfirmed.UTC())
	}
	return out
}

// maxReason is the longest reason in bytes, as of an event on a pod.
const maxReason = 1024

// line returns a reason as one line that is not too long.
func line(reason string) string {
	reason = strings.ReplaceAll(reason, "\n", "; ")
	if len(reason) > maxReason {
		const more = "..."
		reason = strings.ToValidUTF8(reason[:maxReason-len(more)], "") + more
	}
	return reason
}
