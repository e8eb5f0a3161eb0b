package history

import (
	"maps"
	"slices"
	"time"
)

func pinned(c *checker) {
	c.eachSeen(func(v *Volume, e, before *Event) {
		if v.Pinned && before != nil && !maps.Equal(before.Seen.Shown, e.Seen.Shown) {
			c.fail(e.At, "%s is pinned, and showed %v and then %v", v.ID, before.Seen.Shown, e.Seen.Shown)
		}
	})
}

// held: a pod outside the share of a version does not take it while it shows another version of the object.
func held(c *checker) {
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before == nil || v.InPlace {
			return // torn files show no version, so nothing can be held
		}
		if v.IsJoined && c.isUrgent(v, before, e) {
			return // a file that must change changes for all its objects
		}
		for object, version := range e.Seen.Shown {
			last, was := before.Seen.Shown[object]
			s, is := c.wrote(object, version)
			if slices.Contains(v.Canaries, object) {
				continue
			}
			if was && last != version && is && s.share < v.Place {
				c.fail(e.At, "%s: place %d took %v of %s, which is for %d%%", v.ID, v.Place, version, object, s.share)
			}
		}
	})
}

func oneRevision(c *checker) {
	c.eachSeen(func(v *Volume, e, _ *Event) {
		if !v.IsSet {
			return
		}
		revisions := map[string]bool{}
		for object, version := range e.Seen.Shown {
			if s, is := c.wrote(object, version); is {
				revisions[s.revision] = true
			}
		}
		if len(revisions) > 1 || revisions[""] {
			c.fail(e.At, "%s shows %v, of the revisions %v", v.ID, e.Seen.Shown, slices.Sorted(maps.Keys(revisions)))
		}
	})
}

// moment: with spread, a change is taken at the pod's moment: what is taken was known then. A change that can't be written then is retried,
// but a later change waits for the next moment. What must not wait brings all other changes with it.
func moment(c *checker) {
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before == nil || v.LastMoment == nil || maps.Equal(before.Seen.Shown, e.Seen.Shown) {
			return
		}
		if c.isUrgent(v, before, e) {
			return
		}
		last := v.LastMoment(e.At)
		for object, version := range e.Seen.Shown {
			if s, is := c.wrote(object, version); is && before.Seen.Shown[object] != version && s.at > last+lateTime {
				c.fail(e.At, "%s: %s changes to %v, which was written %s after the pod's last moment", v.ID, object, version, s.at-last)
			}
		}
	})
}

// isUrgent reports whether something happened between two looks, or shortly before, that must not wait for a moment. A required object of which
// the volume showed nothing is shown as soon as it can be.
func (c *checker) isUrgent(v *Volume, before, e *Event) bool {
	if slices.ContainsFunc(v.Required, func(object string) bool { _, was := before.Seen.Shown[object]; return !was }) {
		return true
	}
	during := period{before.At - revokeTime, e.At}
	return slices.ContainsFunc(v.Objects(), func(object string) bool {
		return c.wasAbsent(object, during) || c.wasRefused(v, object, during) || c.wasForOthers(v, object, during)
	})
}

// wasForOthers reports whether an object was a canary for other pods at some time of a period.
func (c *checker) wasForOthers(v *Volume, object string, during period) bool {
	return slices.Contains(v.Canaries, object) && c.had(object, during, func(s state) bool { return s.version.UID != "" && s.share < v.Place })
}

// canary: a volume never shows a version of a canary that is for other pods. Once all has settled without it, it shows no older version either.
func canary(c *checker) {
	gone := map[string]map[string]state{}
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before == nil {
			gone[v.ID] = map[string]state{}
		}
		for _, object := range v.Canaries {
			version, isShown := e.Seen.Shown[object]
			s, isKnown := c.wrote(object, version)
			if isShown && isKnown && s.share < v.Place {
				c.fail(e.At, "%s: place %d shows %v of %s, which is for %d%%", v.ID, v.Place, version, object, s.share)
			}
			if last := gone[v.ID][object]; isShown && version.IsOlder(last.version) && !c.wasAbsent(object, period{last.at, e.At}) {
				c.fail(e.At, "%s shows %v of %s, and %v is for other pods", v.ID, version, object, last.version)
			}
			if now := c.stateBefore(object, e); e.Seen.IsSettled && !isShown && now.share < v.Place {
				gone[v.ID][object] = now
			}
		}
	})
}

// receipt: an object is opened only if each of its files was opened with the content that it shows.
func receipt(c *checker) {
	type file struct {
		volume, object, key string
		version             Version
	}
	opened := map[file]bool{}
	shown := map[string]map[string]Version{}
	keys := map[string][]string{}
	for i := range c.events {
		switch e := &c.events[i]; e.Kind {
		case Opened:
			opened[file{e.Volume, e.Object, e.Text, e.Version}] = true
			if !slices.Contains(keys[e.Object], e.Text) {
				keys[e.Object] = append(keys[e.Object], e.Text)
			}
		case Saw:
			if shown[e.Volume] = e.Seen.Shown; len(e.Seen.Wrong) > 0 { // a kill in the middle of a rewrite in place: each file has its own version
				delete(shown, e.Volume)
			}
		case Lost, Unpublished:
			delete(shown, e.Volume)
			maps.DeleteFunc(opened, func(f file, _ bool) bool { return f.volume == e.Volume })
		case Told:
			if v := c.volumes[e.Volume]; v == nil || v.IsJoined {
				continue // the files of an object are not its keys
			}
			for _, object := range e.Receipts {
				version, is := shown[e.Volume][object]
				if !is {
					continue
				}
				if len(keys[object]) == 0 {
					c.fail(e.At, "%s: %s is said to be opened, and no file of it ever was", e.Volume, object)
				}
				for _, key := range keys[object] {
					if !opened[file{e.Volume, object, key, version}] {
						c.fail(e.At, "%s: %s is said to be opened at %v, and its file %s was not", e.Volume, object, version, key)
					}
				}
			}
		}
	}
}

// faultShown: while the files of a volume can't be written, the volume's condition says so, whatever else it waits for. What is told when the
// fault has just ended is no violation, so it counts with the next try that fails.
func faultShown(c *checker) {
	harmless := []string{"Current", "Held", "Spreading", "Split", "Stale", "Pinned"}
	since, last := map[string]time.Duration{}, map[string]time.Duration{}
	told := map[string]*Event{} // that nothing is wrong
	for i := range c.events {
		switch e := &c.events[i]; e.Kind {
		case Broke:
			if _, is := since[e.Volume]; !is || e.At-last[e.Volume] > lateTime { // it is tried every 5 s
				since[e.Volume] = e.At
				delete(told, e.Volume)
			}
			last[e.Volume] = e.At
			if t := told[e.Volume]; t != nil {
				c.fail(t.At, "%s: nothing can be done with its files for %s, and it is %s", e.Volume, t.At-since[e.Volume], t.Condition)
				delete(since, e.Volume)
			}
		case Killed, Started:
			clear(since)
			clear(told)
		case Unpublished, Lost, Mended:
			delete(since, e.Volume)
			delete(told, e.Volume)
		case Told:
			began, is := since[e.Volume]
			delete(told, e.Volume)
			if is && last[e.Volume]-began > brokenTime && slices.Contains(harmless, e.Condition) {
				told[e.Volume] = e
			}
		}
	}
}

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
		if !c.wasRefused(v, q.Object, lately) && !(slices.Contains(v.NeedsConsent, q.Object) && c.timesUnknown(lately) > 1) {
			return true
		}
	}
	return false
}

func quiet(c *checker) {
	for i := range c.events {
		if e := &c.events[i]; e.Kind == Requested {
			c.fail(e.At, "a request although nothing happens: %s", e.Text)
		}
	}
}
