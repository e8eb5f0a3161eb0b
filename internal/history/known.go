package history

import (
	"slices"
	"time"
)

// watchKept: while a volume is mounted, and nobody has refused the object, the plugin keeps what it follows for it.
func watchKept(c *checker) {
	c.eachAnswer(func(e *Event, q Question, before, now *Answer) {
		switch {
		case now == nil:
			c.fail(e.At, "%s is not followed any more for %q", q.Object, q.Account)
		case now.Since != before.Since:
			c.fail(e.At, "%s was not followed for a while for %q", q.Object, q.Account)
		}
	})
}

// answerKept: an answer that a mounted volume has is lost only by a newer answer.
func answerKept(c *checker) {
	c.eachAnswer(func(e *Event, q Question, before, now *Answer) {
		if now != nil && before.Since == now.Since && before.IsKnown && !now.IsKnown {
			c.fail(e.At, "what was known of %s for %q is lost", q.Object, q.Account)
		}
	})
}

// knownForward: the plugin itself takes no older answer while it follows an object, even if nothing is mounted that would show it.
func knownForward(c *checker) {
	var last *Event
	for i := range c.events {
		switch e := &c.events[i]; e.Kind {
		case Killed, Started:
			last = nil
		case Known:
			if last != nil {
				for q, now := range e.Answers {
					if before := last.Answers[q]; before.Since == now.Since && now.Version.UID != "" && now.Version.IsOlder(before.Version) {
						c.fail(e.At, "%s was known at %v for %q, and then at %v", q.Object, before.Version, q.Account, now.Version)
					}
				}
			}
			last = e
		}
	}
}

// eachAnswer calls do for each answer that mounted volumes had at one sample and still need at the next. now is nil if the object is not
// followed any more. After a restart, a volume has none before it is taken over, which its condition tells.
func (c *checker) eachAnswer(do func(e *Event, q Question, before, now *Answer)) {
	mounted, found := map[string]time.Duration{}, map[string]bool{}
	var last *Event
	var startedAt time.Duration
	for i := range c.events {
		switch e := &c.events[i]; e.Kind {
		case Published:
			_, is := mounted[e.Volume]
			switch {
			case is || found[e.Volume]:
			case e.Begin < startedAt: // an earlier process has mounted it
				found[e.Volume] = true
			default:
				mounted[e.Volume] = e.At
			}
		case Told:
			if found[e.Volume] && slices.Contains([]string{"Current", "Held", "Spreading", "Stale"}, e.Condition) {
				delete(found, e.Volume)
				mounted[e.Volume] = e.At
			}
		case Unpublished, Lost:
			delete(mounted, e.Volume)
			delete(found, e.Volume)
		case Killed, Started:
			for id := range mounted {
				found[id] = true
			}
			clear(mounted)
			last, startedAt = nil, e.At
		case Known:
			if last != nil {
				for q, before := range last.Answers {
					if !c.isNeeded(q, mounted, period{last.At, e.At}) {
						continue
					}
					if now, is := e.Answers[q]; is {
						do(e, q, &before, &now)
					} else {
						do(e, q, &before, nil)
					}
				}
			}
			last = e
		}
	}
}

// isNeeded reports whether a volume needs an answer during a period: it was mounted, and had all rights lately. A no that servers with an
// older cache gave twice counts as confirmed.
func (c *checker) isNeeded(q Question, mounted map[string]time.Duration, during period) bool {
	for id, at := range mounted {
		v := c.volumes[id]
		if v == nil || v.Pinned || at > during.begin || !slices.Contains(v.Objects(), q.Object) || q.Account != "" && q.Account != v.Account {
			continue
		}
		lately := period{during.begin - revokeTime, during.end}
		if !c.wasRefused(v, q.Object, lately) && !(slices.Contains(v.NeedsConsent, q.Object) && c.wasUnknownTwice(lately)) {
			return true
		}
	}
	return false
}

// quiet: while nothing happens, the plugin sends no request about objects.
func quiet(c *checker) {
	for i := range c.events {
		if e := &c.events[i]; e.Kind == Requested {
			c.fail(e.At, "a request although nothing happens: %s", e.Text)
		}
	}
}
