package history

import (
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// readTime is how long readers may use a generation after the next one is there. updates.md
	readTime = time.Second
	// admitAge is the greatest age of a right with which a publish succeeds. access.admitAge
	admitAge = 5 * time.Second
	// revokeTime is how long a revocation may take to remove files, or to be forgotten: two and a half resyncs and some seconds. security.md
	revokeTime = 3 * time.Minute
	// lateTime is how much later than at its moment a change may be written.
	lateTime = 10 * time.Second
	// brokenTime is how long a fault of the node may last before it must be reported.
	brokenTime = 5 * time.Minute
)

// Properties returns all properties. What a sentence does not say of its check stands above that.
func Properties() []Property {
	return []Property{
		{"complete", "README.md", "A volume becomes visible only when it is complete.", complete},
		{"whole", "docs/updates.md", "If a reader opens the directory `..data` once, and then opens all files relative to it, it sees one version.", whole},
		{"readable", "docs/updates.md", "After a switch, the reader has at least a second to open its files.", readable},
		{"forward", "README.md", "The files never go back to an older version of an object.", forward},
		{"kept", "docs/reliability.md", "Unless this page says otherwise, **running pods keep their last good files, and new pods wait.**", kept},
		{"not refused", "docs/security.md", "A mounted volume stays as it is.", notRefused},
		{"current", "docs/reliability.md", "When the API server is back, all volumes are current within seconds.", current},
		{"prompt", "docs/how-it-works.md", "So it learns of the change within milliseconds.", prompt},
		{"after lag", "README.md", "The files never go back to an older version of an object.", afterLag},
		{"consent", "docs/security.md", "The plugin asks at the publish, before it requests the object.", consent},
		{"revoked", "docs/security.md", "The plugin removes the files of that source within two and a half resyncs and some seconds.", revoked},
		{"republish", "docs/compatibility.md", "only if the request differs from the one before (`AlreadyExists`)", republish},
		{"answer", "docs/security.md", "The publish fails with `PermissionDenied`.", answer},
		{"unpublish", "docs/how-it-works.md", "The plugin unmounts it, which frees its memory.", unpublish},
		{"pinned", "docs/attributes.md", "a `Pinned` volume is written once, and never updated", pinned},
		{"held", "docs/rollout.md", "A pod takes a version if the share is at least its place.", held},
		{"canary", "docs/rollout.md", "A canary object exists only for the pods whose place is at most its share.", canary},
		{"one revision", "docs/updates.md", "A volume with `sameRevision` takes all of its objects together, or nothing.", oneRevision},
		{"moment", "docs/updates.md", "At this moment its volumes change to the newest state.", moment},
		{"receipt", "docs/security.md", "proves that some process has opened the file since the file got its present content.", receipt},
		{"fault shown", "docs/runbook.md", "The plugin can't write files.", faultShown},
		{"watch kept", "docs/reliability.md", "The watches stay open.", watchKept},
		{"answer kept", "docs/reliability.md", "What the plugin knows is replaced only by a newer answer.", answerKept},
		{"known forward", "docs/reliability.md", "refvol refuses these versions, and requests each object again every 15 to 30 s.", knownForward},
		{"quiet", "docs/updates.md", "The plugin has one watch for each object that the node's volumes show.", quiet},
	}
}

func complete(c *checker) {
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before != nil {
			return
		}
		for _, object := range v.Required {
			during := period{e.At - revokeTime, e.At}
			mayLack := c.wasRefused(v, object, during) || c.timesUnknown(during) > 1 || v.Removes && c.wasAbsent(object, during)
			if _, is := e.Seen.Shown[object]; !is && e.Seen.Gone == "" && !mayLack {
				c.fail(e.At, "%s shows nothing of %s at the first look", v.ID, object)
			}
		}
	})
}

// whole: nobody sees parts of versions, an empty directory, or a name without a file. With InPlace a file may be torn for a while.
func whole(c *checker) {
	c.eachSeen(func(v *Volume, e, _ *Event) {
		if len(e.Seen.Wrong) > 0 && (!v.InPlace || e.Seen.IsSettled) {
			c.fail(e.At, "%s: %s", v.ID, strings.Join(e.Seen.Wrong, "; "))
		}
	})
}

// readable: a generation stays for a second after it was replaced, and nothing that a reader has begun to read within it is gone. A
// withdrawal leaves no time.
func readable(c *checker) {
	began := map[*Volume]map[string]time.Duration{} // when each generation was last known to be present
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before == nil {
			began[v] = map[string]time.Duration{}
		}
		withdrawn := slices.ContainsFunc(v.NeedsConsent, func(object string) bool {
			return c.wasRefused(v, object, period{e.At - revokeTime, e.At}) || c.timesUnknown(period{e.At - revokeTime, e.At}) > 1
		})
		if e.Seen.Gone != "" && e.At-e.Begin < readTime && !withdrawn {
			c.fail(e.At, "%s: a reader lost what it began to read %s before: %s", v.ID, e.At-e.Begin, e.Seen.Gone)
		}
		for generation, at := range began[v] {
			if e.Seen.Left != nil && e.At-at < readTime && !slices.Contains(e.Seen.Left, generation) && !withdrawn {
				c.fail(e.At, "%s: generation %s is gone, and was present %s before", v.ID, generation, e.At-at)
			}
		}
		if e.Seen.Generation != "" {
			began[v][e.Seen.Generation] = e.At
		}
	})
}

// forward: no reader sees an older version than before. A withdrawal between removes the object from the record too, even if nobody has seen
// the files gone.
func forward(c *checker) {
	newest := map[string]map[string]Version{}
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before == nil {
			newest[v.ID] = map[string]Version{}
		}
		if v.InPlace && len(e.Seen.Wrong) > 0 {
			return
		}
		maps.DeleteFunc(newest[v.ID], func(object string, _ Version) bool { _, is := e.Seen.Shown[object]; return !is })
		for object, version := range e.Seen.Shown {
			last, is := newest[v.ID][object]
			if !is || !version.IsOlder(last) {
				newest[v.ID][object] = version
				continue
			}
			if during := (period{before.At - revokeTime, e.At}); !c.wasRefused(v, object, during) && c.timesUnknown(during) < 2 {
				c.fail(e.At, "%s: %s goes back from %v to %v", v.ID, object, last, version)
			}
			newest[v.ID][object] = version
		}
	})
}

// kept: what a volume must show never disappears, except by a refusal or, as requested, with the object.
func kept(c *checker) {
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before == nil || e.Seen.Gone != "" || v.InPlace && len(e.Seen.Wrong) > 0 {
			return
		}
		during := period{before.At - revokeTime, e.At}
		for object := range before.Seen.Shown {
			if _, is := e.Seen.Shown[object]; is || slices.Contains(v.NeedsConsent, object) {
				continue
			}
			if mayGo := v.Removes || !slices.Contains(v.Required, object); !mayGo || !c.wasAbsent(object, during) && !c.wasForOthers(v, object, during) {
				c.fail(e.At, "%s: the files of %s are gone", v.ID, object)
			}
		}
	})
}

// notRefused: only a refusal removes the files of an object that needs a right. A failed review, or a refusal for a few seconds, does not.
func notRefused(c *checker) {
	c.eachSeen(func(v *Volume, e, before *Event) {
		if before == nil || v.InPlace && len(e.Seen.Wrong) > 0 || e.Seen.Gone != "" {
			return
		}
		during := period{before.At - revokeTime, e.At}
		for _, object := range v.NeedsConsent {
			_, was := before.Seen.Shown[object]
			_, is := e.Seen.Shown[object]
			mayGo := v.Removes || !slices.Contains(v.Required, object)
			refused := c.wasRefused(v, object, during) || v.IsJoined && slices.ContainsFunc(v.NeedsConsent, func(other string) bool {
				return c.wasRefused(v, other, during) // a file that it shares goes as a whole
			})
			refused = refused || c.timesUnknown(during) > 1
			if was && !is && !refused && !(mayGo && c.wasAbsent(object, during)) && !c.wasForOthers(v, object, during) {
				c.fail(e.At, "%s: the files of %s are gone, and nobody has refused it", v.ID, object)
			}
		}
	})
}

func current(c *checker) { c.eachSettled(c.newest) }

func prompt(c *checker) {
	c.eachSeen(func(v *Volume, e, _ *Event) {
		if e.Seen.IsPrompt && v.LastMoment == nil {
			c.newest(v, e)
		}
	})
}

// newest fails if a look does not show the newest versions of a volume's objects.
func (c *checker) newest(v *Volume, e *Event) {
	isOlder := func(object string) bool { return c.isOlderImmutable(v, object, e) }
	if v.Pinned || slices.ContainsFunc(v.Objects(), isOlder) { // see afterLag
		return
	}
	if slices.ContainsFunc(v.Required, func(object string) bool { return c.stateBefore(object, e).version.UID == "" }) {
		return // it keeps what it has
	}
	isImmutable := func(object string) bool { return c.knowsImmutable(v, object, e, func(Version) bool { return true }) }
	if v.IsSet && slices.ContainsFunc(v.Objects(), isImmutable) {
		return // nobody watches an immutable object any more, and the others wait for it
	}
	isRefused := func(object string) bool { return !c.isAllowed(v, object, e.At-1) } // a grant of this moment was not seen yet
	for _, object := range v.Objects() {
		if s, is := c.wrote(object, e.Seen.Shown[object]); is && s.isImmutable {
			continue // nobody watches it any more
		}
		if isRefused(object) || v.IsJoined && slices.ContainsFunc(v.NeedsConsent, isRefused) {
			continue
		}
		want := c.stateBefore(object, e).version
		if slices.Contains(v.Canaries, object) && c.stateBefore(object, e).share < v.Place {
			want = Version{}
		}
		if e.Seen.Shown[object] != want {
			c.fail(e.At, "%s shows %v of %s, want %v", v.ID, e.Seen.Shown[object], object, want)
		}
	}
}

// afterLag: if an API server lagged when the plugin started, an immutable object of that time is not the last word.
func afterLag(c *checker) {
	c.eachSettled(func(v *Volume, e *Event) {
		for _, object := range v.Objects() {
			if !v.Pinned && c.isOlderImmutable(v, object, e) {
				c.fail(e.At, "%s shows %v of %s, and the plugin believes in an older immutable version", v.ID, e.Seen.Shown[object], object)
			}
		}
	})
}

// isOlderImmutable reports whether the plugin knows an older version of an object than a volume shows, which is immutable.
func (c *checker) isOlderImmutable(v *Volume, object string, e *Event) bool {
	return c.knowsImmutable(v, object, e, func(known Version) bool { return known.IsOlder(e.Seen.Shown[object]) })
}

// knowsImmutable reports whether the plugin knows an immutable version of an object for which is returns true.
func (c *checker) knowsImmutable(v *Volume, object string, e *Event, is func(Version) bool) bool {
	for i := e.index; i >= 0; i-- {
		if c.events[i].Kind != Known {
			continue
		}
		for _, account := range []string{"", v.Account} {
			known := c.events[i].Answers[Question{account, object}].Version
			if s, found := c.wrote(object, known); found && s.isImmutable && is(known) {
				return true
			}
		}
		return false
	}
	return false
}

func revoked(c *checker) {
	c.eachSettled(func(v *Volume, e *Event) {
		for _, object := range v.NeedsConsent {
			if _, is := e.Seen.Shown[object]; is && !v.Pinned && !c.hadRight(v, object, period{e.At - revokeTime, e.At}) {
				c.fail(e.At, "%s shows %s, to which %s has no right", v.ID, object, v.Account)
			}
		}
	})
}

// eachSettled calls do with what each mounted volume shows whenever everything has settled.
func (c *checker) eachSettled(do func(v *Volume, e *Event)) {
	c.eachSeen(func(v *Volume, e, _ *Event) {
		if e.Seen.IsSettled {
			do(v, e)
		}
	})
}

func consent(c *checker) {
	mounted := map[string]bool{}
	for i := range c.events {
		e := &c.events[i]
		v := c.volumes[e.Volume]
		switch e.Kind {
		case Unpublished, Lost:
			mounted[e.Volume] = false
		case Published:
			if v == nil || mounted[e.Volume] {
				continue
			}
			mounted[e.Volume] = true
			for _, object := range v.NeedsConsent {
				if !c.hadRight(v, object, period{e.Begin - admitAge, e.At}) {
					c.fail(e.At, "%s is published without a right to %s", v.ID, object)
				}
			}
		}
	}
}

// republish: a call for a mounted volume never fails with a code after which the kubelet would remove it.
func republish(c *checker) {
	isFinal := func(code string) bool {
		return !slices.Contains([]string{"Canceled", "DeadlineExceeded", "Unavailable", "ResourceExhausted", "Aborted"}, code)
	}
	mounted := map[string]bool{}
	for i := range c.events {
		switch e := &c.events[i]; e.Kind {
		case Published:
			mounted[e.Volume] = true
		case Unpublished, Lost:
			mounted[e.Volume] = false
		case Failed:
			if mounted[e.Volume] && isFinal(e.Code) {
				c.fail(e.At, "%s is mounted, and a publish fails with %s: %s", e.Volume, e.Code, e.Text)
			}
		}
	}
}

// answer: a code says what is the case. Answers of a faulty API server may say more.
func answer(c *checker) {
	faulty := false
	for i := range c.events {
		e := &c.events[i]
		switch e.Kind {
		case Faulty:
			faulty = true
		case Healed:
			faulty = false
		}
		v := c.volumes[e.Volume]
		if e.Kind != Failed || v == nil {
			continue
		}
		during := period{e.Begin - admitAge, e.At}
		switch e.Code {
		case "NotFound":
			if !faulty && !slices.ContainsFunc(v.Required, func(object string) bool { return c.wasAbsent(object, during) }) {
				c.fail(e.At, "%s: NotFound, and all objects exist: %s", v.ID, e.Text)
			}
		case "PermissionDenied":
			refused := slices.ContainsFunc(v.NeedsConsent, func(object string) bool { return c.wasRefused(v, object, during) })
			if !refused && !faulty && c.timesUnknown(period{during.begin - revokeTime, during.end}) == 0 { // a refused watch is tried again later
				c.fail(e.At, "%s: PermissionDenied, and the pod has all rights: %s", v.ID, e.Text)
			}
		case "OutOfRange":
			if !faulty && !slices.ContainsFunc(v.Objects(), func(object string) bool { return c.wasLarge(object, period{during.begin - revokeTime, during.end}) }) {
				c.fail(e.At, "%s: OutOfRange, and no object is large: %s", v.ID, e.Text)
			}
		case "Unavailable", "Aborted", "DeadlineExceeded", "Canceled":
		default:
			c.fail(e.At, "%s: unexpected code %s: %s", v.ID, e.Code, e.Text)
		}
	}
}

func unpublish(c *checker) {
	gone := map[string]bool{}
	for i := range c.events {
		switch e := &c.events[i]; e.Kind {
		case Unpublished:
			gone[e.Volume] = true
		case Saw:
			if gone[e.Volume] {
				c.fail(e.At, "%s is visible after its unpublish", e.Volume)
			}
		case Left:
			c.fail(e.At, "left: %s", e.Text)
		}
	}
}
