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
	over := func(format string, has, limit any) {
		c.problem(at, template.at.Child("volumes").String(), fmt.Sprintf(format, has, limit))
	}
	if driven > volume.MaxPodVolumes {
		over("the pod has %d volumes of this driver, more than %d: show several objects in one volume", driven, volume.MaxPodVolumes)
	}
	if names.Objects > volume.MaxPodObjects {
		over("the volumes of the pod name %d ConfigMaps and Secrets, each counted once for each volume, more than %d: "+
			"show fewer objects, or show them in fewer volumes", names.Objects, volume.MaxPodObjects)
	}
	if names.Items > volume.MaxPodItems {
		over("the volumes of the pod list %d sources, items, variables, joined keys and directories, more than %d: "+
			"list fewer of them, or show whole objects, without items", names.Items, volume.MaxPodItems)
	}
	if names.Bytes > volume.MaxPodNameBytes {
		over("the names and paths of the pod's volumes have %d bytes, more than %d: "+
			"list fewer items, or shorten the path in front of them", names.Bytes, volume.MaxPodNameBytes)
	}
}
