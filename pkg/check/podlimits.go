package check

import (
	"fmt"

	"github.com/refvol/refvol/pkg/volume"
)

// podLimits adds a problem for each limit that the volumes of the driver in a pod exceed together. driven is their number. all has the valid
// ones: what the others name is not known.
func (c *Checker) podLimits(at Location, template podTemplate, driven int, all []driverVolume) {
	var names volume.Names
	for i := range all {
		if resolved := all[i].resolved; resolved != nil {
			names = names.Plus(resolved.Names())
		}
	}
	problem := func(format string, args ...any) {
		c.problem(at, template.at.Child("volumes").String(), fmt.Sprintf(format, args...))
	}
	if driven > volume.MaxPodVolumes {
		problem("the pod has %d volumes of this driver, more than %d: show several objects in one volume", driven, volume.MaxPodVolumes)
	}
	for _, limit := range volume.PodLimits(names, 0) {
		if has := limit.Count(names); has > limit.Most {
			problem("Too many: the volumes of the pod name %d %s, more than %d: %s", has, limit.What, limit.Most, limit.Fix)
		}
	}
}
