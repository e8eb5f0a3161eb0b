package status

import "time"

// EnvironmentVolume is the volume whose receipts say with which variables a pod's containers have started: refvol-notify opens its
// files (docs/apply.md).
const EnvironmentVolume = "refvol-notify-env"

// OldEnvironment says that no container has started with what the volume shows of an object, "" if one has, or if the volume is for
// something else.
func (v *Volume) OldEnvironment(o *Object) string {
	if v.Name != EnvironmentVolume || o.Shown == nil || o.OpenedAt != nil || o.Opened != "no" {
		return ""
	}
	text := "the containers run with older variables, or have not started"
	if o.ShownSince != nil {
		text += ", since " + o.ShownSince.UTC().Format(time.RFC3339)
	}
	return text
}
