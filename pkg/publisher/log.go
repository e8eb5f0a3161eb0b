package publisher

import (
	"fmt"
	"strings"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// maxDescribed limits the objects that one log line names. A volume may have 256.
const maxDescribed = 16

// describe returns one line with the versions at which the files show objects.
func describe(refs []volume.Ref, shown record.Versions) string {
	return enumerate(refs, func(ref volume.Ref) string {
		if version := shown[ref].ResourceVersion; version != "" {
			return "at " + version
		}
		return "not shown"
	})
}

// enumerate joins a text about each object, for the first maxDescribed of them.
func enumerate(refs []volume.Ref, say func(volume.Ref) string) string {
	texts := make([]string, 0, min(len(refs), maxDescribed+1))
	for i, ref := range refs {
		if i == maxDescribed {
			texts = append(texts, fmt.Sprintf("%d more", len(refs)-i))
			break
		}
		texts = append(texts, fmt.Sprintf("%s %s/%s %s", ref.Kind, ref.Namespace, ref.Name, say(ref)))
	}
	return strings.Join(texts, ", ")
}
