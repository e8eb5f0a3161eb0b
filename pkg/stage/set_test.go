package stage

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// TestSplit: the objects of a set must carry one valid revision. What is not known, and what is shown although it was deleted, match none.
func TestSplit(t *testing.T) {
	a, b, c := ref("a"), ref("b"), ref("c")
	type revisions map[volume.Ref]volume.Revision
	refs := func(all ...volume.Ref) map[volume.Ref]bool {
		set := map[volume.Ref]bool{}
		for _, ref := range all {
			set[ref] = true
		}
		return set
	}
	for name, tt := range map[string]struct {
		objects          revisions
		unknown, deleted map[volume.Ref]bool
		unchanged, isOff bool
		want             map[volume.Ref]Reason
	}{
		"the same":            {objects: revisions{a: "r2", b: "r2"}},
		"another":             {objects: revisions{a: "r2", b: "r1"}, want: map[volume.Ref]Reason{a: {Set, "carries r2"}, b: {Set, "carries r1"}}},
		"one has none":        {objects: revisions{a: "r2", b: ""}, want: map[volume.Ref]Reason{a: {Set, "carries r2"}, b: {Set, "carries none"}}},
		"all have none":       {objects: revisions{a: "", b: ""}, want: map[volume.Ref]Reason{a: {Set, "carries none"}, b: {Set, "carries none"}}},
		"one is unknown":      {objects: revisions{a: "r2"}, unknown: refs(b), want: map[volume.Ref]Reason{a: {Set, "carries r2"}, b: {Set, "is not known"}}},
		"one was deleted":     {objects: revisions{a: "r2", b: "r2"}, deleted: refs(c), want: map[volume.Ref]Reason{a: {Set, "carries r2"}, b: {Set, "carries r2"}, c: {Set, "was deleted, and its files stay"}}},
		"nothing new":         {objects: revisions{a: "r2", b: "r1"}, unchanged: true},
		"no set":              {objects: revisions{a: "r2", b: "r1"}, isOff: true},
		"one that is invalid": {objects: revisions{a: "r 2", b: "r 2"}, want: map[volume.Ref]Reason{a: invalid(), b: invalid()}},
	} {
		change := Change{Shown: Versions{}, Newest: Versions{}, Objects: map[volume.Ref]*volume.Object{}, Unknown: tt.unknown, Deleted: tt.deleted, IsSet: !tt.isOff}
		for ref, revision := range tt.objects {
			change.Objects[ref] = &volume.Object{Ref: ref, Version: version("2"), Revision: revision}
			change.Newest[ref] = version("2")
			if change.Shown[ref] = version("1"); tt.unchanged {
				change.Shown[ref] = version("2")
			}
		}
		if got := change.Split(); !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func invalid() Reason {
	return Reason{Mistake, "has an annotation refvol.dev/revision that counts as none: it must have 1 to 128 bytes of letters, digits and . _ - / : @ +"}
}

// TestSetWaitsTogether: if a file of one object of a set must wait, all that have changed wait, also what would otherwise be taken at once.
func TestSetWaitsTogether(t *testing.T) {
	a, b, c, d := ref("a"), ref("b"), ref("c"), ref("d")
	change := Change{
		Shown: Versions{a: version("1"), b: version("1"), d: version("1")}, Newest: Versions{a: version("2"), b: version("2"), c: version("2"), d: version("1")},
		Objects: map[volume.Ref]*volume.Object{}, Place: 50, IsOptional: func(volume.Ref) bool { return false },
	}
	for ref, version := range change.Newest {
		change.Objects[ref] = &volume.Object{Ref: ref, Version: version}
	}
	change.Objects[a].Rollout = "10%"
	files := Files{Shown: [][]volume.Ref{{a}, {b}, {d}}, Changing: [][]volume.Ref{{a}, {b}, {c}}, Now: [][]volume.Ref{{b}}}
	for _, isSet := range []bool{false, true} {
		change.IsSet = isSet
		want := []volume.Ref{a}
		if isSet {
			want = append(want, b, c)
		}
		got, ok := change.Decide(change.Waits(time.Now()), files)
		if refs := slices.SortedFunc(maps.Keys(got.At), volume.CompareRefs); !ok || !slices.Equal(refs, want) {
			t.Errorf("a set: %t: %v wait, want %v", isSet, refs, want)
		}
	}
}

// TestSplitEndsAMoment: a moment that comes while the objects don't match is over. What matches later waits for the next one.
func TestSplitEndsAMoment(t *testing.T) {
	a, b := ref("a"), ref("b")
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := NewClock("pod", time.Hour)
	change := func(first, second volume.Revision) *Change {
		c := &Change{
			Shown: Versions{a: version("1"), b: version("1")}, Newest: Versions{a: version(string(first)), b: version(string(second))},
			IsSet: true, Place: 50, Clock: clock, IsOptional: func(volume.Ref) bool { return false },
		}
		c.Objects = map[volume.Ref]*volume.Object{
			a: {Ref: a, Version: c.Newest[a], Revision: first}, b: {Ref: b, Version: c.Newest[b], Revision: second},
		}
		return c
	}
	moment := NextMoment("pod", time.Hour, start)
	whole := change("2", "2")
	if split := whole.Split(); split != nil || len(whole.Waits(start)) != 2 {
		t.Fatalf("it does not wait for its moment: %v", split)
	}
	if change("3", "2").Split() == nil {
		t.Fatal("it is not split")
	}
	later := change("3", "3")
	if later.Split() != nil || len(later.Waits(moment.Add(time.Minute))) != 2 || !clock.at.Equal(moment.Add(time.Hour)) {
		t.Errorf("what matches a minute after the moment %s waits until %s", moment, clock.at)
	}
}
