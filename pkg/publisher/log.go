package publisher

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"k8s.io/klog/v2"

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

// logPanic logs a panic. It leaves out the panic's value, which could hold an object's value. The stack holds none.
func logPanic(ctx context.Context, cause any) {
	klog.FromContext(ctx).Error(nil, "Something panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
}

// fewNames limits the names or files in a text for a pod's author, and nameLength the bytes of each name. Authors choose the variables, so
// there may be any number of them, and of any length.
const (
	fewNames   = 10
	nameLength = 64
)

// few returns the first names of a list and the number of the others.
func few(names []string) string {
	texts := make([]string, 0, fewNames)
	for _, name := range names[:min(len(names), fewNames)] {
		texts = append(texts, short(name))
	}
	text := strings.Join(texts, ", ")
	if more := len(names) - len(texts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// short returns a name, or the beginning of a long one.
func short(name string) string {
	if len(name) <= nameLength {
		return name
	}
	return strings.ToValidUTF8(name[:nameLength], "") + fmt.Sprintf("... (%d bytes)", len(name))
}
