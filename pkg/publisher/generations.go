package publisher

import (
	"maps"
	"math/rand/v2"
	"time"
)

const (
	// readTime is the minimum time between two switches of ..data. Readers have that long even if there is no room for earlier generations.
	// A single change is never delayed. In a burst of changes, the latest state is written.
	readTime = 25 * time.Millisecond
	// pruneTime is when a superseded generation is removed, because what it shows may have been revoked.
	pruneTime = time.Second
	// receiptTime is how long receipts wait at most before they are saved. They usually wait until generations are pruned, so that they don't
	// delay the changes of other volumes.
	receiptTime = 2 * pruneTime
)

// generations knows when each generation of a volume was superseded. The times are measured by this process and not taken from the names,
// because the wall clock may be set back. Generations of an earlier process count as superseded when this one found them.
type generations struct {
	// current is the name of the present generation. foundAt is when this process found the volume. ends has the time at which each
	// generation was superseded since then, by name.
	current string
	foundAt time.Time
	ends    map[string]time.Time
	// lastSwitch is when visible files last changed.
	lastSwitch time.Time
	// pruneAt is when the next superseded generation is to be removed, or zero. leftover says why one could not be removed. It is reported
	// as a failure of the volume until that generation is gone.
	pruneAt  time.Time
	leftover error
}

// find starts with the generations of a mounted volume. The earlier process may have been killed before it pruned.
func (g *generations) find(current string, at time.Time) {
	*g = generations{current: current, foundAt: at, pruneAt: time.Now().Add(pruneTime)}
}

// note records that files have changed and which generation they are in. If they are visible, the time of their readers starts.
func (g *generations) note(name string, isVisible bool) {
	now := time.Now()
	if isVisible {
		g.lastSwitch = now
		if g.pruneAt.IsZero() {
			g.pruneAt = now.Add(pruneTime)
		}
	}
	if g.current != name && g.current != "" {
		if g.ends == nil {
			g.ends = map[string]time.Time{}
		}
		g.ends[g.current] = now
	}
	g.current = name
}

// nextSwitch returns when ..data may switch again.
func (g *generations) nextSwitch() time.Time { return g.lastSwitch.Add(readTime) }

// endOf returns when a generation was superseded.
func (g *generations) endOf(name string) time.Time {
	if end, ok := g.ends[name]; ok {
		return end
	}
	return g.foundAt
}

// pruned records a prune of the generations that ended at or before a time: how many are left, and why one could not be removed.
func (g *generations) pruned(left int, before time.Time, err error) {
	now := time.Now()
	maps.DeleteFunc(g.ends, func(_ string, end time.Time) bool { return !end.After(before) })
	g.pruneAt, g.leftover = time.Time{}, err
	switch {
	case err != nil:
		g.pruneAt = now // it is retried
	case left > 0: // a random delay: several generations of a busy volume are removed together, and not at its next change
		g.pruneAt = now.Add(pruneTime + rand.N(pruneTime))
	default:
		g.ends = nil
	}
}

// isAnyLeft reports whether a superseded generation may exist.
func (g *generations) isAnyLeft() bool { return !g.pruneAt.IsZero() || g.leftover != nil }
