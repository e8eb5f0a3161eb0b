package publisher

import "time"

// newsDelay limits how long a worker collects news while volumes are due.
const newsDelay = time.Second

// news is what a worker will log about its volumes. Volumes with the same news share a line, because one object can make all volumes of a
// pod fail. Only the worker's goroutine uses it.
type news struct {
	lines []newsLine
	// volumes are the IDs of those that the lines are about. since is when the first line was added.
	volumes map[string]bool
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
func (n *news) add(id string, line newsLine) {
	if n.volumes[id] {
		n.log()
	}
	if n.volumes == nil {
		n.volumes, n.since = map[string]bool{}, time.Now()
	}
	n.volumes[id] = true
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
