package status

import "time"

// EnvironmentVolume is the volume whose receipts show with which variables a pod's containers have started, because refvol-notify opens its
// files (docs/apply.md).
const EnvironmentVolume = "refvol-notify-env"

// OldEnvironment returns a text if no container has started with what the volume shows of an object. It returns "" if one has, or if this
// is not the EnvironmentVolume.
func (v *Volume) OldEnvironment(o *VolumeObject) string {
	if v.Name != EnvironmentVolume || o.Shown == nil || o.OpenedAt != nil || o.Opened != "no" {
		return ""
	}
	text := "the containers run with older variables, or have not started"
	if o.ShownSince != nil {
		text += ", since " + o.ShownSince.UTC().Format(time.RFC3339)
	}
	return text
}
