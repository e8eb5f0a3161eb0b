package history

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/must"
)

var (
	v1 = Version{"u1", 1}
	v2 = Version{"u1", 2}
	v3 = Version{"u1", 3}
	w1 = Version{"u2", 1}
)

type events = []Event

func at(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// event returns an event of volume v, its account a and the object "o", at a second.
func event(kind Kind, second float64) Event {
	return Event{Kind: kind, At: at(second), Begin: at(second), Volume: "v", Account: "a", Object: "o"}
}

func wrote(second float64, object string, v Version, share int) Event {
	return Event{Kind: Wrote, At: at(second), Object: object, Version: v, Share: share}
}

// saw is a look that shows versions of the object, or nothing.
func saw(second float64, shown ...Version) Event {
	e := event(Saw, second)
	e.Seen = &Seen{Generation: "g1", Left: []string{"g1"}, Shown: map[string]Version{}}
	for _, v := range shown {
		e.Seen.Shown["o"] = v
	}
	return e
}

func settled(e Event) Event {
	e.Seen.IsSettled = true
	return e
}

func prompted(e Event) Event {
	e.Seen.IsPrompt = true
	return e
}

func published(begin, second float64) Event {
	e := event(Published, second)
	e.Begin = at(begin)
	return e
}

func failed(second float64, code string) Event {
	e := event(Failed, second)
	e.Code = code
	return e
}

func known(second float64, v Version, since float64) Event {
	e := event(Known, second)
	e.Answers = map[Question]Answer{{"", "o"}: {Version: v, IsKnown: v.UID != "", Since: at(since)}}
	return e
}

func told(second float64, condition string, receipts ...string) Event {
	e := event(Told, second)
	e.Condition, e.Receipts = condition, receipts
	return e
}

func opened(v Version) Event {
	e := event(Opened, 0)
	e.Text, e.Version = "a", v
	return e
}

// broke has a fault every five seconds until the last second.
func broke(last float64) (all events) {
	for second := 0.0; second <= last; second += 5 {
		all = append(all, event(Broke, second))
	}
	return all
}

// TestProperties: each property accepts a history that begins with before and goes on with good, and refuses one that goes on with bad.
// First the API server has the object at v1. The volume names it as required unless the case changes that.
func TestProperties(t *testing.T) {
	consenting := func(v *Volume) { v.NeedsConsent = []string{"o"} }
	optional := func(v *Volume) { v.Required, v.Optional = nil, []string{"o"} }
	isSet := func(v *Volume) { v.IsSet = true }
	isCanary := func(v *Volume) { v.Required, v.Canaries, v.Place = nil, []string{"o"}, 51 }
	spreads := func(v *Volume) {
		v.LastMoment = func(now time.Duration) time.Duration { return now.Truncate(time.Hour) + time.Minute }
	}
	wrong, replaced, pruned := saw(1, v1), saw(2, v2), saw(2, v2)
	wrong.Seen.Wrong = []string{"torn"}
	replaced.Seen.Generation, replaced.Seen.Left = "g2", []string{"g1", "g2"}
	pruned.Seen.Generation, pruned.Seen.Left = "g2", []string{"g2"}
	immutable := wrote(1, "o", v2, 100)
	immutable.IsImmutable = true
	first, other := wrote(0, "o", v2, 100), wrote(1, "p", v1, 100)
	first.Revision, other.Revision = "r1", "r1"
	another, both := other, saw(2, v2)
	another.Revision, both.Seen.Shown["p"] = "r2", v1
	grant, suspended := event(Granted, 0), event(Suspended, 2)
	suspended.End = at(4)
	for _, c := range []struct {
		property          string
		volume            func(*Volume)
		before, good, bad events
	}{
		{"complete", nil, nil, events{saw(1, v1)}, events{saw(1)}},
		{"one revision", isSet, nil, events{first, other, both}, events{first, another, both}},
		{"one revision", isSet, nil, events{first, saw(2, v2)}, events{saw(1, v1)}},
		{"whole", nil, nil, events{saw(1, v1)}, events{wrong}},
		{"readable", nil, events{saw(1.9, v1)}, events{replaced}, events{pruned}},
		{"readable", nil, nil, events{saw(1, v1), pruned}, events{saw(1.001, v1), pruned}},
		{"forward", nil, nil, events{saw(1, v1), saw(2, v2)}, events{saw(1, v2), saw(2, v1)}},
		{"forward", nil, nil, events{saw(1, v2), saw(2, w1)}, events{saw(1, w1), saw(2, v2)}},
		{"forward", nil, events{saw(1, v2)}, events{event(Lost, 2), saw(3, v1)}, events{saw(3, v1)}},
		// A mount that is lost at the time of a look.
		{"forward", nil, events{saw(1, v2)}, events{event(Lost, 2), saw(2, v1)}, events{saw(2, v1), event(Lost, 2)}},
		{"forward", consenting, events{grant, saw(1, v2)}, events{event(Revoked, 2), saw(3, v1)}, events{saw(3, v1)}},
		{"kept", optional, events{saw(1, v1)}, events{event(Removed, 2), saw(3)}, events{saw(3)}},
		{"not refused", consenting, events{grant, saw(1, v1)}, events{event(Revoked, 2), saw(3)}, events{suspended, saw(9)}},
		{"current", nil, nil, events{settled(saw(200, v1))}, events{wrote(2, "o", v2, 100), settled(saw(200, v1))}},
		{"prompt", nil, events{wrote(2, "o", v2, 100)}, events{prompted(saw(3, v2))}, events{prompted(saw(3, v1))}},
		{
			"after lag", nil,
			events{immutable, wrote(2, "o", w1, 100)},
			events{known(3, w1, 0), settled(saw(200, w1))},
			events{known(3, v2, 0), settled(saw(200, w1))},
		},
		{"consent", consenting, events{grant}, events{event(Revoked, 6), published(10, 11)}, events{event(Revoked, 4), published(10, 11)}},
		{"revoked", consenting, events{grant, saw(1, v1), event(Revoked, 2)}, events{settled(saw(200))}, events{settled(saw(200, v1))}},
		{"republish", nil, events{published(0, 1)}, events{failed(2, "Unavailable")}, events{event(Faulty, 1), failed(2, "NotFound")}},
		{"answer", nil, nil, events{event(Removed, 1), failed(2, "NotFound")}, events{failed(2, "NotFound")}},
		{"answer", consenting, nil, events{failed(2, "PermissionDenied")}, events{grant, failed(20, "PermissionDenied")}},
		{"answer", nil, nil, events{failed(1, "Unavailable")}, events{failed(1, "Internal")}},
		{"unpublish", nil, nil, events{saw(1, v1), event(Unpublished, 2)}, events{event(Unpublished, 1), saw(2, v1)}},
		{"unpublish", nil, nil, nil, events{event(Left, 1)}},
		{"pinned", func(v *Volume) { v.Pinned = true }, events{saw(1, v1)}, events{saw(2, v1)}, events{saw(2, v2)}},
		{
			"held", func(v *Volume) { v.Place = 51 },
			events{saw(1, v1)},
			events{wrote(2, "o", v2, 51), saw(3, v2)},
			events{wrote(2, "o", v2, 50), saw(3, v2)},
		},
		{"canary", isCanary, nil, events{saw(1, v1), wrote(2, "o", v2, 51), saw(3, v2)}, events{saw(1), wrote(2, "o", v2, 50), saw(3, v2)}},
		{
			"canary", isCanary,
			events{saw(1, v1), wrote(2, "o", v2, 50), settled(saw(3)), wrote(4, "o", v3, 51)},
			events{saw(5, v3)},
			events{saw(5, v1)},
		},
		{"moment", spreads, events{saw(1, v1)}, events{wrote(50, "o", v2, 100), saw(100, v2)}, events{wrote(75, "o", v2, 100), saw(100, v2)}},
		{"receipt", nil, events{saw(1, v2)}, events{opened(v2), told(2, "Current", "o")}, events{opened(v1), told(2, "Current", "o")}},
		{"receipt", nil, events{saw(1, v2)}, nil, events{told(2, "Current", "o")}},
		{"fault shown", nil, broke(310), events{told(312, "VolumeUpdateFailed"), event(Broke, 315)}, events{told(312, "Held"), event(Broke, 315)}},
		{"fault shown", nil, broke(310), events{told(312, "Held")}, events{told(311, "Current"), event(Broke, 315)}}, // it has just been mended
		{
			"fault shown", nil, nil,
			append(broke(290), told(292, "Held"), event(Broke, 295)), append(broke(310), told(311, "Stale"), event(Broke, 315)),
		},
		{"watch kept", nil, events{published(0, 1), known(2, v1, 1)}, events{known(3, v2, 1)}, events{event(Known, 3)}},
		{"watch kept", nil, events{published(0, 1), known(2, v1, 1)}, events{event(Started, 3), event(Known, 4)}, events{known(4, v1, 3)}},
		{"answer kept", nil, nil, events{known(2, v1, 1), known(3, Version{}, 1)}, events{published(0, 1), known(2, v1, 1), known(3, Version{}, 1)}},
		{"known forward", nil, events{known(2, v2, 1)}, events{known(4, v1, 3)}, events{known(4, v1, 1)}},
		{"quiet", nil, nil, nil, events{event(Requested, 1)}},
	} {
		for _, isGood := range []bool{true, false} {
			v := Volume{ID: "v", Account: "a", Required: []string{"o"}, Place: 1}
			if c.volume != nil {
				c.volume(&v)
			}
			h := New()
			h.Declare(v)
			for _, e := range slices.Concat(events{wrote(0, "o", v1, 100)}, c.before, map[bool]events{true: c.good, false: c.bad}[isGood]) {
				h.AddAt(e)
			}
			found := h.Check()
			isFound := slices.ContainsFunc(found, func(f Violation) bool { return f.Property == c.property })
			if isGood && len(found) > 0 || !isGood && !isFound {
				t.Errorf("%s: a history that is good: %t, has %v", c.property, isGood, found)
			}
		}
	}
}

// TestEachPropertyIsTested: the test above has a bad history of each property. It proves what the documents say, word for word.
func TestEachPropertyIsTested(t *testing.T) {
	test := must.Get(os.ReadFile("check_test.go"))(t)
	for _, p := range Properties() {
		if !strings.Contains(string(test), "\""+p.Name+"\", ") {
			t.Errorf("no case of %q", p.Name)
		}
		page := must.Get(os.ReadFile(filepath.Join("../..", p.Page)))(t)
		if words := strings.Join(strings.Fields(string(page)), " "); !strings.Contains(words, p.Says) {
			t.Errorf("%s does not say: %s", p.Page, p.Says)
		}
	}
}
