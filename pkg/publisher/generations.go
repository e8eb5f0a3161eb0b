package publisher

import (
	"maps"
	"math/rand/v2"
	"time"
)

const (
	// readTime after a switch ..data does not switch again: so where there is no room for earlier
	// generations, readers have that long. A change that comes alone is never held up; of a burst, the
	// latest state counts.
	readTime = 25 * time.Millisecond
	// pruneTime after it was superseded a generation is removed: what it
	// shows may have been revoked.
	pruneTime = time.Second
)

// generations are the ages of those of a volume. They are times of this process, never those in the names: the wall clock may
// be set back. What an earlier process left counts as superseded since this one found it.
type generations struct {
	// current is the name of the present one, foundAt when this process found the volume, and ends when generations were
	// superseded since then, by name.
	current string
	foundAt time.Time
	ends    map[string]time.Time
	// lastSwitch is when files that are visible were last changed.
	lastSwitch time.Time
	// pruneAt is when the next superseded one has had its time; zero for none. leftover is why one could not be removed, which
	// ails the volume until it is known to be gone.
	pruneAt  time.Time
	leftover error
}

// find begins with the generations of a volume that was found. The earlier process may have been killed before it pruned.
func (g *generations) find(current string, at time.Time) {
	*g = generations{current: current, foundAt: at, pruneAt: time.Now().Add(pruneTime)}
}

// note notes that files have changed, which are in a generation now: where they are visible, their readers then have their
// time.
func (g *generations) note(name string, isVisible bool) {
	now := time.Now()
	if isVisible {
		g.lastSwitch = now
		if g.pruneAt.IsZero() {
			g.pruneAt = now.Add(pruneTime)
		}
	}
	if g.current != name {
		if g.ends == nil {
			g.ends = map[string]time.Time{}
		}
		g.ends[g.current] = now
		g.current = name
	}
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

// pruned notes how many are left of the superseded generations, which ended after a time, and why one could not be removed.
func (g *generations) pruned(left int, before time.Time, err error) {
	now := time.Now()
	maps.DeleteFunc(g.ends, func(_ string, end time.Time) bool { return !end.After(before) })
	g.pruneAt, g.leftover = time.Time{}, err
	switch {
	case err != nil:
		g.pruneAt = now // it is tried again
	case left > 0: // of a volume that changes often, several go at once, and not with its next change
		g.pruneAt = now.Add(pruneTime + rand.N(pruneTime))
	default:
		g.ends = nil
	}
}

// isAnyLeft says whether there may be a superseded generation.
func (g *generations) isAnyLeft() bool { return !g.pruneAt.IsZero() || g.leftover != nil }
