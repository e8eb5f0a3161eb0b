package publisher

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// maxDescribed is how many objects a line of the log names; a volume may have 256.
const maxDescribed = 16

// logged returns ctx with a logger that names the volume: by its id, by its name in the spec of its pod, and by that.
func (e *entry) logged(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx).WithValues("volumeID", e.id)
	if pod := e.report.pod; pod.Name != "" {
		logger = logger.WithValues("pod", klog.KRef(pod.Namespace, pod.Name))
	}
	if _, name := targetParts(e.table.kubeletDir, e.target); isElement(name) {
		logger = logger.WithValues("volume", name)
	}
	return klog.NewContext(ctx, logger)
}

// describe says in one line at which versions files show objects.
func describe(refs []volume.Ref, shown record.Versions) string {
	return enumerate(refs, func(ref volume.Ref) string {
		if version := shown[ref].ResourceVersion; version != "" {
			return "at " + version
		}
		return "not shown"
	})
}

// whatChanged says in one line which objects differ between the files and an earlier state of them.
func (f *files) whatChanged(refs []volume.Ref, before record.Versions) string {
	now := f.shown
	changed := slices.DeleteFunc(slices.Clone(refs), func(ref volume.Ref) bool { return before[ref] == now[ref] })
	if len(changed) == 0 {
		return "the files differed from what they should show"
	}
	return enumerate(changed, func(ref volume.Ref) string {
		was, is := before[ref], now[ref]
		switch {
		case is.UID == "" && f.withdrawn[ref]:
			return "is refused to the pod, or may be in the files of what is: its files were removed"
		case is.UID == "":
			return "was deleted, its files were removed"
		case was.UID == "":
			return "was not shown before"
		case was.UID != is.UID:
			return "was deleted and created again"
		}
		return "changed, it was at " + was.ResourceVersion
	})
}

// enumerate joins what is said of each object, for the first maxDescribed of them.
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

// logPanic logs a panic. What it carried is not repeated, since it could hold a value; the stack holds none.
func logPanic(ctx context.Context, cause any) {
	klog.FromContext(ctx).Error(nil, "Something panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
}
