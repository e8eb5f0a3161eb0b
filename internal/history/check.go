package history

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Property is something that is true of every history. It proves a sentence of a page, word for word.
type Property struct {
	Name string
	// Page is the file below the project's root, and Says the sentence.
	Page, Says string
	check      func(c *checker)
}

// Violation is a moment at which a property does not hold.
type Violation struct {
	Property string
	At       time.Duration
	Text     string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s at %s: %s", v.Property, v.At.Round(time.Millisecond), v.Text)
}

// Check returns each moment at which a property does not hold, ordered by time.
func (h *History) Check() []Violation { return h.check(Properties()) }

func (h *History) check(properties []Property) []Violation {
	c := &checker{events: h.Events(), volumes: h.volumes}
	c.index()
	for _, p := range properties {
		c.property = p.Name
		p.check(c)
	}
	slices.SortStableFunc(c.violations, func(a, b Violation) int { return int(a.At - b.At) })
	return c.violations
}

// checker judges one history. Its fields below violations are constant after index.
type checker struct {
	events     []Event
	volumes    map[string]*Volume
	property   string
	violations []Violation

	// seen has the indices of the events Saw of each volume.
	seen map[string][]int
	// states has the states of each object, and rights those of each account and object, oldest first.
	states map[string][]state
	rights map[Question][]right
	// unknown are the times during which rights may look refused.
	unknown []period
	lags    []lag
}

// lag is a time during which the API server answers as it was at an earlier time.
type lag struct {
	period
	as time.Duration
}

// state is a version of an object, or its absence, from a time on.
type state struct {
	at      time.Duration
	index   int
	version Version
	share   int
	// isImmutable and isLarge are as in Event.
	isImmutable, isLarge bool
	revision             string
}

type right struct {
	at      time.Duration
	granted bool
}

type period struct{ begin, end time.Duration }

// within returns the part of a period that belongs to the history.
func (p period) within() period { return period{max(p.begin, 0), p.end} }

// fail adds a violation of the present property.
func (c *checker) fail(at time.Duration, format string, args ...any) {
	c.violations = append(c.violations, Violation{c.property, at, fmt.Sprintf(format, args...)})
}

func (c *checker) index() {
	c.seen, c.states, c.rights = map[string][]int{}, map[string][]state{}, map[Question][]right{}
	for i := range c.events {
		switch e := &c.events[i]; e.Kind {
		case Saw:
			if c.volumes[e.Volume] != nil {
				c.seen[e.Volume] = append(c.seen[e.Volume], i)
			}
		case Wrote:
			c.states[e.Object] = append(c.states[e.Object], state{e.At, e.index, e.Version, e.Share, e.IsImmutable, e.IsLarge, e.Revision})
		case Removed:
			c.states[e.Object] = append(c.states[e.Object], state{at: e.At, index: e.index, share: 100})
		case Granted, Revoked:
			q := Question{e.Account, e.Object}
			c.rights[q] = append(c.rights[q], right{e.At, e.Kind == Granted})
		case Suspended:
			c.unknown = append(c.unknown, period{e.At, e.End})
		case Lagging, CaughtUp:
			if n := len(c.lags); n > 0 && c.lags[n-1].end > e.At {
				c.lags[n-1].end = e.At
			}
			if e.Kind == Lagging {
				c.lags = append(c.lags, lag{period{e.At, math.MaxInt64}, e.Begin})
			}
		}
	}
}

// eachSeen calls do for each look at a volume, with the look before it, which is nil for the first one and after the mount was lost. A mount may
// be lost at the time of a look, so the order of the events counts.
func (c *checker) eachSeen(do func(v *Volume, e, before *Event)) {
	for id, looks := range c.seen {
		for n, i := range looks {
			var before *Event
			if n > 0 && !slices.ContainsFunc(c.events[looks[n-1]:i], func(e Event) bool { return e.Kind == Lost && e.Volume == id }) {
				before = &c.events[looks[n-1]]
			}
			do(c.volumes[id], &c.events[i], before)
		}
	}
}

// state returns an object's state at a time. An object that was never written does not exist.
func (c *checker) state(object string, at time.Duration) state {
	return c.lastState(object, func(s state) bool { return s.at <= at })
}

// stateBefore returns an object's state when an event happened.
func (c *checker) stateBefore(object string, e *Event) state {
	return c.lastState(object, func(s state) bool { return s.index <= e.index })
}

func (c *checker) lastState(object string, was func(state) bool) (now state) {
	for _, s := range c.states[object] {
		if !was(s) {
			break
		}
		now = s
	}
	return now
}

// wrote returns the state with a version, and whether there is one.
func (c *checker) wrote(object string, version Version) (state, bool) {
	i := slices.IndexFunc(c.states[object], func(s state) bool { return s.version == version })
	if i < 0 {
		return state{}, false
	}
	return c.states[object][i], true
}

// answered returns the time of the states that the API server answered with during a period.
func (c *checker) answered(during period) period {
	for _, l := range c.lags {
		if l.begin <= during.end && during.begin <= l.end {
			during.begin = min(during.begin, l.as)
		}
	}
	return during
}

// had reports whether an object had such a state at some time of a period, as the API server answered.
func (c *checker) had(object string, during period, is func(state) bool) bool {
	during = c.answered(during.within())
	return is(c.state(object, during.begin)) || slices.ContainsFunc(c.states[object], func(s state) bool {
		return during.begin <= s.at && s.at <= during.end && is(s)
	})
}

// wasAbsent reports whether an object did not exist at some time of a period.
func (c *checker) wasAbsent(object string, during period) bool {
	return c.had(object, during, func(s state) bool { return s.version.UID == "" })
}

// wasLarge reports whether an object was large at some time of a period.
func (c *checker) wasLarge(object string, during period) bool {
	return c.had(object, during, func(s state) bool { return s.isLarge })
}

// isAllowed reports whether a volume's account may read an object at a time.
func (c *checker) isAllowed(v *Volume, object string, at time.Duration) bool {
	if !slices.Contains(v.NeedsConsent, object) {
		return true
	}
	granted := false
	for _, r := range c.rights[Question{v.Account, object}] {
		if r.at > at {
			break
		}
		granted = r.granted
	}
	return granted
}

// wasRefused reports whether a volume's account had no right to an object at some time of a period.
func (c *checker) wasRefused(v *Volume, object string, during period) bool {
	return c.mightRead(v, object, during, false)
}

// hadRight reports whether a volume's account had a right at some time of a period.
func (c *checker) hadRight(v *Volume, object string, during period) bool {
	return c.mightRead(v, object, during, true)
}

// mightRead reports whether a volume's account might, or might not, read an object at some time of a period.
func (c *checker) mightRead(v *Volume, object string, during period, granted bool) bool {
	during = during.within()
	return c.isAllowed(v, object, during.begin) == granted || slices.Contains(v.NeedsConsent, object) &&
		slices.ContainsFunc(c.rights[Question{v.Account, object}], func(r right) bool {
			return during.begin <= r.at && r.at <= during.end && r.granted == granted
		})
}

// timesUnknown returns how often rights looked refused during a period. If they did twice, a second question may have confirmed the refusal.
func (c *checker) timesUnknown(during period) (n int) {
	for _, p := range c.unknown {
		if p.begin <= during.end && during.begin <= p.end {
			n++
		}
	}
	return n
}
