package publisher

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/payload"
)

// newsDelay limits how long a worker collects news while volumes are due.
const newsDelay = time.Second

// news is what a worker will log about its volumes. Volumes with the same news share a line, because one object can make all volumes of a
// pod fail. Only the worker's goroutine uses it.
type news struct {
	lines []newsLine
	// volumes are those that the lines are about. since is when the first line was added.
	volumes map[*vol]bool
	since   time.Time
}

// newsLine is one line. log writes it, and names the first of its volumes. volumes is the number of these.
type newsLine struct {
	kind    string
	volumes int
	log     func(more ...any)
}

// add adds a line about a volume, or counts the volume if there is a line of the same kind. If the volume has news already, that is logged
// first, so that the last line about a volume has its last state.
func (n *news) add(v *vol, line newsLine) {
	if n.volumes[v] {
		n.log()
	}
	if n.volumes == nil {
		n.volumes, n.since = map[*vol]bool{}, time.Now()
	}
	n.volumes[v] = true
	for i := range n.lines {
		if n.lines[i].kind == line.kind {
			n.lines[i].volumes++
			return
		}
	}
	line.volumes = 1
	n.lines = append(n.lines, line)
}

// log logs all lines. The number of volumes is in a line only if there are several.
func (n *news) log() {
	for _, line := range n.lines {
		if line.volumes > 1 {
			line.log("volumes", line.volumes)
		} else {
			line.log()
		}
	}
	*n = news{}
}

// line returns what the worker logs about a volume's new state, or nil, and reports failures to the pod's author.
func (v *vol) line(ctx context.Context, found failures) *newsLine {
	logger, worst, w := klog.FromContext(ctx), found.worst(), v.staged.waits
	var line *newsLine
	switch {
	case worst == nil && w.condition == "":
		return &newsLine{log: func(more ...any) { logger.Info("Volume is current again", more...) }}
	case worst == nil && w.condition == ConditionSpreading:
		logger.V(2).Info("An update waits for the pod's moment", "at", w.until)
		return nil
	case worst == nil:
		logger.V(2).Info("An update is held", "reason", w.text)
		return nil
	case !v.isMounted: // the failing call is logged
	case worst.kind >= kindUnknown:
		return &newsLine{kind: found.newsKind(), log: func(more ...any) {
			logger.Info("A mounted volume is not updated", append([]any{"target", v.target, "reason", found}, more...)...)
		}}
	default:
		line = &newsLine{kind: found.newsKind(), log: func(more ...any) { logger.Error(found, "Volume does not show what it should", more...) }}
	}
	if pod := v.report.pod; pod.Name != "" {
		text := found.Error()
		if v.isMounted && errors.As(found, new(*payload.MissingError)) {
			text += "; the files stay as they are"
		}
		v.opts.Events.Warn(pod, string(worst.condition()), text)
	}
	return line
}

// newsKind returns which failures share a line. Their key is finer: it may name keys of objects, which differ from volume to volume.
func (all failures) newsKind() string {
	var errno syscall.Errno
	errors.As(all, &errno)
	worst := all.worst()
	return fmt.Sprint(worst.condition(), " ", worst.reason, " ", int(errno))
}
