package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/volume"
)

// sets adds a problem for each volume with sameRevision whose objects have different revisions now: a pod that has it does not start. Objects
// that don't exist, or that the caller may not read, don't count.
func (c *Checker) sets(at Location, volumes []driverVolume) {
	for _, v := range volumes {
		if !v.spec.SameRevision {
			continue
		}
		var texts []string
		revisions := map[volume.Revision]bool{}
		spec := v.spec
		if v.resolved != nil { // it has what the pod's own volumes name, too
			spec = v.resolved
		}
		for _, ref := range spec.Refs() {
			object := c.objects[ref]
			if object.Exists != Yes {
				continue
			}
			revision, text := object.Revision, fmt.Sprintf("%s carries %s", ref, object.Revision)
			if !revision.IsValid() {
				revision, text = "", fmt.Sprintf("%s carries none that counts", ref)
			}
			revisions[revision], texts = true, append(texts, text)
		}
		if len(revisions) < 2 && !revisions[""] {
			continue
		}
		slices.Sort(texts)
		c.problem(at, v.at+".sameRevision", fmt.Sprintf("no new pod starts now, because the objects must carry the same %s: %s", volume.RevisionAnnotation, strings.Join(texts, ", ")))
	}
}
