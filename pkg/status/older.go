package status

import (
	"cmp"
	"fmt"
)

// OlderAnswer is an answer of the API server that is older than what was known or shown before. The files don't go back to it.
type OlderAnswer struct {
	// Object is the object's version in the answer, or nil if the object does not exist there.
	Object *Version `json:"object,omitempty"`
	// ResourceVersion is the version of the answer. Known is the newer version that came before.
	ResourceVersion string `json:"resourceVersion"`
	Known           string `json:"known"`
}

// reason explains the volume's condition. If several objects have older answers, it names the first and the number of the others. If there
// is no other reason, it names the first object that no container has in its environment, or the first canary that the pod does not see.
func (r row) reason() string {
	reason, first, more := r.volume.Reason, (*VolumeObject)(nil), -1
	for i := range r.volume.Objects {
		o := &r.volume.Objects[i]
		if reason == "" {
			reason = r.volume.OldEnvironment(o)
		}
		if reason == "" && o.Absent != nil {
			reason = fmt.Sprintf("%s %q: canary %s: not for this pod", o.Kind, o.Namespace+"/"+o.Name, cmp.Or(o.Canary, "without a share"))
		}
		if o.OlderAnswer != nil {
			if first == nil {
				first = o
			}
			more++
		}
	}
	if first == nil {
		return reason
	}
	if reason != "" {
		reason += "; "
	}
	reason += fmt.Sprintf("%s %q: the API server answers with resourceVersion %s, older than %s: if etcd was restored with a bumped revision, write the object again, otherwise restart all plugins and then replace the pods",
		first.Kind, first.Namespace+"/"+first.Name, first.OlderAnswer.ResourceVersion, first.OlderAnswer.Known)
	if more > 0 {
		reason += fmt.Sprintf(" (the same of %d more objects)", more)
	}
	return reason
}
