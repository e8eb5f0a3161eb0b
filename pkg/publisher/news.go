package publisher

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// newsDelay limits how long a worker collects news while volumes are due.
const newsDelay = time.Second

// news is what a worker will log about its volumes. Volumes with the same news share a line, because one object can make all volumes of a
// pod fail. Only the worker's goroutine uses it.
type news struct {
	lines []newsLine
	// volumes are those that the lines are about. since is when the first line was added.
	volumes map[*entry]bool
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
func (n *news) add(e *entry, kind string, log func(more ...any)) {
	if n.volumes[e] {
		n.log()
	}
	if n.volumes == nil {
		n.volumes, n.since = map[*entry]bool{}, time.Now()
	}
	n.volumes[e] = true
	for i := range n.lines {
		if n.lines[i].kind == kind {
			n.lines[i].volumes++
			return
		}
	}
	n.lines = append(n.lines, newsLine{kind, 1, log})
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

// isNewsDue reports whether the news must be logged now, because the worker is about to rest or because they have waited for newsDelay.
func (w *worker) isNewsDue() bool {
	if len(w.news.lines) == 0 {
		return false
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	first := w.first()
	return first == nil || time.Until(first.due) > 0 || time.Since(w.news.since) >= newsDelay
}

// newsKind returns which failures share a line. failure.kind is finer: it may name keys, which differ from volume to volume.
func (f *failure) newsKind() string {
	var errno syscall.Errno
	errors.As(f.err, &errno)
	return fmt.Sprint(f.event, " ", f.reason, " ", int(errno))
}
