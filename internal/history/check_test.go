package history

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const second = time.Second

var (
	v1 = Version{"u1", 1}
	v2 = Version{"u1", 2}
	w1 = Version{"u2", 1}
)

func wrote(t time.Duration, object string, v Version, share int) Event {
	return Event{Kind: Wrote, At: t, Object: object, Version: v, Share: share}
}

// saw is a look at volume v that shows versions of the object "o", or nothing.
func saw(t time.Duration, shown ...Version) Event {
	seen := &Seen{Generation: "g1", Left: []string{"g1"}, Shown: map[string]Version{}}
	for _, v := range shown {
		seen.Shown["o"] = v
	}
	return Event{Kind: Saw, At: t, Begin: t, Volume: "v", Seen: seen}
}

func settled(e Event) Event {
	e.Seen.IsSettled = true
	return e
}

func prompted(e Event) Event {
	e.Seen.IsPrompt = true
	return e
}

func published(begin, t time.Duration) Event {
	return Event{Kind: Published, At: t, Begin: begin, Volume: "v"}
}

func failed(t time.Duration, code string) Event {
	return Event{Kind: Failed, At: t, Begin: t, Volume: "v", Code: code}
}

func known(t time.Duration, answers map[Question]Answer) Event {
	return Event{Kind: Known, At: t, Answers: answers}
}

func answers(v Version, since time.Duration) map[Question]Answer {
	return map[Question]Answer{{"", "o"}: {Version: v, IsKnown: v.UID != "", Since: since}}
}

// TestProperties: each property accepts the one history and refuses the other. In the first hundred seconds the API server has the object at
// v1. The volume v names it as required unless the case changes that.
func TestProperties(t *testing.T) {
	consenting := func(v *Volume) { v.NeedsConsent = []string{"o"} }
	optional := func(v *Volume) { v.Required, v.Optional = nil, []string{"o"} }
	grant := Event{Kind: Granted, Account: "a", Object: "o"}
	revoke := func(t time.Duration) Event { return Event{Kind: Revoked, At: t, Account: "a", Object: "o"} }
	told := func(t time.Duration, condition string, receipts ...string) Event {
		return Event{Kind: Told, At: t, Volume: "v", Condition: condition, Receipts: receipts}
	}
	broke := func(from, to time.Duration) (all []Event) {
		for t := from; t <= to; t += 5 * second {
			all = append(all, Event{Kind: Broke, At: t, Volume: "v"})
		}
		return all
	}
	wrong := saw(second, v1)
	wrong.Seen.Wrong = []string{"torn"}
	replaced, pruned := saw(2*second, v2), saw(2*second, v2)
	replaced.Seen.Generation, replaced.Seen.Left = "g2", []string{"g1", "g2"}
	pruned.Seen.Generation, pruned.Seen.Left = "g2", []string{"g2"}
	immutable := wrote(second, "o", v2, 100)
	immutable.IsImmutable = true
	first, other := wrote(0, "o", v2, 100), wrote(second, "p", v1, 100)
	first.Revision, other.Revision = "r1", "r1"
	another := other
	another.Revision = "r2"
	both := saw(2*second, v2)
	both.Seen.Shown["p"] = v1
	isSet := func(v *Volume) { v.IsSet = true }
	for _, c := range []struct {
		property  string
		volume    func(*Volume)
		good, bad []Event
	}{
		{"complete", nil, []Event{saw(second, v1)}, []Event{saw(second)}},
		{"one revision", isSet, []Event{first, other, both}, []Event{first, another, both}},
		{"one revision", isSet, []Event{first, saw(2*second, v2)}, []Event{saw(second, v1)}},
		{"whole", nil, []Event{saw(second, v1)}, []Event{wrong}},
		{"readable", nil, []Event{saw(2*second-1, v1), replaced}, []Event{saw(2*second-1, v1), pruned}},
		{"readable", nil, []Event{saw(second, v1), pruned}, []Event{saw(second+1, v1), pruned}},
		{"forward", nil, []Event{saw(second, v1), saw(2*second, v2)}, []Event{saw(second, v2), saw(2*second, v1)}},
		{"forward", nil, []Event{saw(second, v2), saw(2*second, w1)}, []Event{saw(second, w1), saw(2*second, v2)}},
		{"forward", nil, []Event{saw(second, v2), {Kind: Lost, At: 2 * second, Volume: "v"}, saw(3*second, v1)}, []Event{saw(second, v2), saw(3*second, v1)}},
		{ // a mount that is lost at the time of a look
			"forward", nil,
			[]Event{saw(second, v2), {Kind: Lost, At: 2 * second, Volume: "v"}, saw(2*second, v1)},
			[]Event{saw(second, v2), saw(2*second, v1), {Kind: Lost, At: 2 * second, Volume: "v"}},
		},
		{"forward", consenting, []Event{grant, saw(second, v2), revoke(2 * second), saw(3*second, v1)}, []Event{grant, saw(second, v2), saw(3*second, v1)}},
		{
			"kept", optional,
			[]Event{saw(second, v1), {Kind: Removed, At: 2 * second, Object: "o"}, saw(3 * second)},
			[]Event{saw(second, v1), saw(3 * second)},
		},
		{
			"not refused", consenting,
			[]Event{grant, saw(second, v1), revoke(2 * second), saw(3 * second)},
			[]Event{grant, saw(second, v1), {Kind: Suspended, At: 2 * second, End: 4 * second}, saw(9 * second)},
		},
		{"current", nil, []Event{settled(saw(200*second, v1))}, []Event{wrote(2*second, "o", v2, 100), settled(saw(200*second, v1))}},
		{
			"prompt", nil,
			[]Event{wrote(2*second, "o", v2, 100), prompted(saw(3*second, v2))},
			[]Event{wrote(2*second, "o", v2, 100), prompted(saw(3*second, v1))},
		},
		{
			"after lag", nil,
			[]Event{immutable, wrote(2*second, "o", w1, 100), known(3*second, answers(w1, 0)), settled(saw(200*second, w1))},
			[]Event{immutable, wrote(2*second, "o", w1, 100), known(3*second, answers(v2, 0)), settled(saw(200*second, w1))},
		},
		{
			"consent", consenting,
			[]Event{grant, revoke(6 * second), published(10*second, 11*second)},
			[]Event{grant, revoke(4 * second), published(10*second, 11*second)},
		},
		{
			"revoked", consenting,
			[]Event{grant, saw(second, v1), revoke(2 * second), settled(saw(200 * second))},
			[]Event{grant, saw(second, v1), revoke(2 * second), settled(saw(200*second, v1))},
		},
		{"republish", nil, []Event{published(0, second), failed(2*second, "Unavailable")}, []Event{published(0, second), {Kind: Faulty}, failed(2*second, "NotFound")}},
		{
			"answer", nil,
			[]Event{{Kind: Removed, At: second, Object: "o"}, failed(2*second, "NotFound")},
			[]Event{failed(2*second, "NotFound")},
		},
		{"answer", consenting, []Event{failed(2*second, "PermissionDenied")}, []Event{grant, failed(20*second, "PermissionDenied")}},
		{"answer", nil, []Event{failed(second, "Unavailable")}, []Event{failed(second, "Internal")}},
		{
			"unpublish", nil,
			[]Event{saw(second, v1), {Kind: Unpublished, At: 2 * second, Volume: "v"}},
			[]Event{{Kind: Unpublished, At: second, Volume: "v"}, saw(2*second, v1)},
		},
		{"unpublish", nil, nil, []Event{{Kind: Left, Text: "a mount"}}},
		{"pinned", func(v *Volume) { v.Pinned = true }, []Event{saw(second, v1), saw(2*second, v1)}, []Event{saw(second, v1), saw(2*second, v2)}},
		{
			"held", func(v *Volume) { v.Place = 51 },
			[]Event{saw(second, v1), wrote(2*second, "o", v2, 51), saw(3*second, v2)},
			[]Event{saw(second, v1), wrote(2*second, "o", v2, 50), saw(3*second, v2)},
		},
		{
			"canary", func(v *Volume) { v.Required, v.Canaries, v.Place = nil, []string{"o"}, 51 },
			[]Event{saw(second, v1), wrote(2*second, "o", v2, 51), saw(3*second, v2)},
			[]Event{saw(second), wrote(2*second, "o", v2, 50), saw(3*second, v2)},
		},
		{
			"canary", func(v *Volume) { v.Required, v.Canaries, v.Place = nil, []string{"o"}, 51 },
			[]Event{saw(second, v1), wrote(2*second, "o", v2, 50), settled(saw(3 * second)), wrote(4*second, "o", Version{"u1", 3}, 51), saw(5*second, Version{"u1", 3})},
			[]Event{saw(second, v1), wrote(2*second, "o", v2, 50), settled(saw(3 * second)), wrote(4*second, "o", Version{"u1", 3}, 51), saw(5*second, v1)},
		},
		{
			"moment", func(v *Volume) {
				v.LastMoment = func(at time.Duration) time.Duration { return at.Truncate(time.Hour) + 60*second }
			},
			[]Event{saw(second, v1), wrote(50*second, "o", v2, 100), saw(100*second, v2)},
			[]Event{saw(second, v1), wrote(75*second, "o", v2, 100), saw(100*second, v2)},
		},
		{
			"receipt", nil,
			[]Event{{Kind: Opened, Volume: "v", Object: "o", Text: "a", Version: v2}, saw(second, v2), told(2*second, "Current", "o")},
			[]Event{{Kind: Opened, Volume: "v", Object: "o", Text: "a", Version: v1}, saw(second, v2), told(2*second, "Current", "o")},
		},
		{"receipt", nil, nil, []Event{saw(second, v2), told(2*second, "Current", "o")}},
		{
			"fault shown", nil,
			append(broke(0, 310*second), told(312*second, "VolumeUpdateFailed"), broke(315*second, 315*second)[0]),
			append(broke(0, 310*second), told(312*second, "Held"), broke(315*second, 315*second)[0]),
		},
		{
			"fault shown", nil,
			append(broke(0, 310*second), told(312*second, "Held")), // it has just been mended
			append(broke(0, 310*second), told(311*second, "Current"), broke(315*second, 315*second)[0]),
		},
		{
			"fault shown", nil,
			append(broke(0, 290*second), told(292*second, "Held"), broke(295*second, 295*second)[0]),
			append(broke(0, 310*second), told(311*second, "Stale"), broke(315*second, 315*second)[0]),
		},
		{
			"watch kept", nil,
			[]Event{published(0, second), known(2*second, answers(v1, second)), known(3*second, answers(v2, second))},
			[]Event{published(0, second), known(2*second, answers(v1, second)), known(3*second, nil)},
		},
		{
			"watch kept", nil,
			[]Event{published(0, second), known(2*second, answers(v1, second)), {Kind: Started, At: 3 * second}, known(4*second, nil)},
			[]Event{published(0, second), known(2*second, answers(v1, second)), known(4*second, answers(v1, 3*second))},
		},
		{
			"answer kept", nil,
			[]Event{known(2*second, answers(v1, second)), known(3*second, answers(Version{}, second))},
			[]Event{published(0, second), known(2*second, answers(v1, second)), known(3*second, answers(Version{}, second))},
		},
		{
			"known forward", nil,
			[]Event{known(2*second, answers(v2, second)), known(4*second, answers(v1, 3*second))},
			[]Event{known(2*second, answers(v2, second)), known(4*second, answers(v1, second))},
		},
		{"quiet", nil, nil, []Event{{Kind: Requested, Text: "GET"}}},
	} {
		for _, isGood := range []bool{true, false} {
			v := Volume{ID: "v", Account: "a", Required: []string{"o"}, Place: 1}
			if c.volume != nil {
				c.volume(&v)
			}
			h := New()
			h.Declare(v)
			events := append([]Event{wrote(0, "o", v1, 100)}, map[bool][]Event{true: c.good, false: c.bad}[isGood]...)
			for i := range events {
				events[i].index = i
			}
			h.events = events
			found := h.Check()
			isFound := func(f Violation) bool { return f.Property == c.property }
			if isGood && len(found) > 0 {
				t.Errorf("%s: a good history has %v", c.property, found)
			}
			if !isGood && (len(found) == 0 || !slices.ContainsFunc(found, isFound)) {
				t.Errorf("%s: a bad history has only %v", c.property, found)
			}
		}
	}
}

// TestEachPropertyIsTested: the test above has a bad history of each property. It proves what the documents say, word for word.
func TestEachPropertyIsTested(t *testing.T) {
	test, err := os.ReadFile("check_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Properties() {
		if !strings.Contains(string(test), "\""+p.Name+"\", ") && !strings.Contains(string(test), "\t\""+p.Name+"\",") {
			t.Errorf("no case of %q", p.Name)
		}
		page, err := os.ReadFile(filepath.Join("../..", p.Page))
		if err != nil {
			t.Fatal(err)
		}
		if words := strings.Join(strings.Fields(string(page)), " "); !strings.Contains(words, p.Says) {
			t.Errorf("%s does not say: %s", p.Page, p.Says)
		}
	}
}

// TestNever: what a run has not met is named.
func TestNever(t *testing.T) {
	h := New()
	h.Met("a")
	if missing := Never(h.AllMet(), "a", "b"); !slices.Equal(missing, []string{"b"}) {
		t.Error(missing)
	}
}

// TestAdd: an event gets its time and its place. The text of each kind names what it is about.
func TestAdd(t *testing.T) {
	h := New()
	h.Add(Event{Kind: Wrote, Object: "o", Version: v1, Share: 10})
	h.Add(settled(saw(0, v1)))
	events := h.Events()
	if events[1].index != 1 || events[1].At < events[0].At {
		t.Errorf("events %v", events)
	}
	if text := events[0].String(); !strings.Contains(text, "wrote  o {u1 1} 10%") {
		t.Error(text)
	}
	if text := events[1].String(); !strings.Contains(text, "saw v g1 of 1: map[o:{u1 1}]") {
		t.Error(text)
	}
}
