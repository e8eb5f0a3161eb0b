package stage

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

func ref(name string) volume.Ref {
	return volume.Ref{Kind: volume.ConfigMap, Namespace: "shop", Name: name}
}

func version(n string) volume.Version { return volume.Version{UID: "u", ResourceVersion: n} }

// TestHeldTogether: objects are held with the changed objects of their files, unless one of these must not wait. An unknown object is always
// held, and if a file of it must change, nothing can be shown. If a file of one object of a set must wait, all that have changed wait, also
// what would otherwise be taken at once.
func TestHeldTogether(t *testing.T) {
	a, b, c, d, u, v := ref("a"), ref("b"), ref("c"), ref("d"), ref("u"), ref("v")
	n, m := ref("n"), ref("m") // these are new, and m is required
	shown := Versions{a: version("1"), b: version("1"), c: version("1"), d: version("1"), u: version("1")}
	newest := Versions{a: version("2"), b: version("2"), c: version("2"), d: version("1"), n: version("1"), m: version("1")}
	type groups = [][]volume.Ref
	for name, tt := range map[string]struct {
		waiting []volume.Ref
		files   Files
		want    []volume.Ref
		fails   bool
		isSet   bool
	}{
		"alone":                              {waiting: []volume.Ref{a}, files: Files{Changing: groups{{a}, {b}}}, want: []volume.Ref{a}},
		"no file changes":                    {waiting: []volume.Ref{a}, files: Files{Shown: groups{{a}}, Changing: groups{{b}}}},
		"a file with another":                {waiting: []volume.Ref{a}, files: Files{Changing: groups{{a, b}, {c}}}, want: []volume.Ref{a, b}},
		"over two files":                     {waiting: []volume.Ref{a}, files: Files{Changing: groups{{a, b}, {b, c}}}, want: []volume.Ref{a, b, c}},
		"over one that is the same":          {waiting: []volume.Ref{a}, files: Files{Changing: groups{{a, d}, {d, c}}}, want: []volume.Ref{a}},
		"a file that would not change":       {waiting: []volume.Ref{a}, files: Files{Shown: groups{{a, b}}, Changing: groups{{a}}}, want: []volume.Ref{a, b}},
		"a file that must change":            {waiting: []volume.Ref{a}, files: Files{Changing: groups{{a, b}, {c}}, Now: groups{{b}}}},
		"one that must, beyond what is same": {waiting: []volume.Ref{a}, files: Files{Changing: groups{{a, d}, {d, b}}, Now: groups{{b}}}, want: []volume.Ref{a}},
		"unknown, no file changes":           {waiting: []volume.Ref{u}, want: []volume.Ref{u}},
		"unknown, beside a change":           {waiting: []volume.Ref{u}, files: Files{Shown: groups{{u, a}, {b}}, Changing: groups{{b}}}, want: []volume.Ref{u, a}},
		"unknown and not shown":              {waiting: []volume.Ref{v}, files: Files{Shown: groups{{v, a}}, Changing: groups{{a}}}, want: []volume.Ref{v, a}},
		"unknown, beside a new object":       {waiting: []volume.Ref{u}, files: Files{Shown: groups{{u, d}}, Possible: groups{{u, d, n}, {a}}}, want: []volume.Ref{u, n}},
		"unknown, beside a required new one": {waiting: []volume.Ref{u}, files: Files{Shown: groups{{u, d}}, Changing: groups{{m}, {c}}, Possible: groups{{u, d, m}}}, want: []volume.Ref{u, m}},
		"and that is in a file of another":   {waiting: []volume.Ref{u}, files: Files{Shown: groups{{u, d}}, Changing: groups{{m, c}}, Possible: groups{{u, d, m}}}, want: []volume.Ref{u, m, c}},
		"and that file must change":          {waiting: []volume.Ref{u}, files: Files{Shown: groups{{u, d}}, Now: groups{{m, c}}, Possible: groups{{u, d, m}}}, fails: true},
		"unknown and not shown, beside one":  {waiting: []volume.Ref{v}, files: Files{Shown: groups{{d}}, Possible: groups{{v, d, n}}}, want: []volume.Ref{v}},
		"unknown, and its file must change":  {waiting: []volume.Ref{u}, files: Files{Shown: groups{{u, d}}, Now: groups{{u, d}}}, fails: true},
		"a set":                              {waiting: []volume.Ref{a}, files: Files{Changing: groups{{a}, {b}}, Now: groups{{b}}}, want: []volume.Ref{a, b, c, n, m}, isSet: true},
		"unknown, and another must go":       {waiting: []volume.Ref{u}, files: Files{Shown: groups{{u, b}}, Now: groups{{b}}}, fails: true},
	} {
		change := Change{Shown: shown, Newest: newest, Unknown: map[volume.Ref]bool{}, Place: 50, IsOptional: func(ref volume.Ref) bool { return ref == n }}
		if change.IsSet = tt.isSet; tt.isSet {
			change.Objects = map[volume.Ref]*volume.Object{a: nil, b: nil, c: nil, d: nil, n: nil, m: nil}
		}
		if newest[u] = shown[u]; tt.waiting[0] == u || tt.waiting[0] == v {
			change.Unknown[tt.waiting[0]] = true
			delete(newest, tt.waiting[0])
		}
		waits, want := map[volume.Ref]Reason{}, Versions{}
		for _, ref := range tt.waiting {
			waits[ref] = Reason{Kind: Share}
			if change.Unknown[ref] {
				waits[ref] = Reason{Kind: Unknown}
			}
		}
		for _, ref := range tt.want {
			want[ref] = shown[ref]
		}
		got, ok := change.Decide(waits, tt.files)
		if ok == tt.fails || !maps.Equal(got.At, want) {
			t.Errorf("%s: %v, %t, want %v", name, got, ok, want)
		}
		for ref := range got.At {
			_, isOwn := waits[ref]
			if why := got.Why[ref]; isOwn == (why.Kind == Beside) || !isOwn && strings.HasSuffix(why.Text, "of its set") != tt.isSet || !got.Has(why.Kind) || got.Has(0) {
				t.Errorf("%s: %s waits because %v", name, ref, why)
			}
		}
	}
}

// TestReasons: why two objects wait, of which a is required and b is optional. They go from version 1 to version 5.
func TestReasons(t *testing.T) {
	clock := func(c *Change) { c.Clock = NewClock("u", time.Minute) }
	for name, test := range map[string]struct {
		edit func(a, b *volume.Object)
		then func(c *Change)
		want map[string]Kind
	}{
		"none":                 {want: map[string]Kind{}},
		"outside of the share": {edit: func(a, _ *volume.Object) { a.Rollout = "49%" }, want: map[string]Kind{"a": Share}},
		"in the share":         {edit: func(a, _ *volume.Object) { a.Rollout = "50%" }, want: map[string]Kind{}},
		"a mistake":            {edit: func(a, _ *volume.Object) { a.Rollout = "ten" }, want: map[string]Kind{"a": Mistake}},
		"immutable":            {edit: func(a, _ *volume.Object) { a.Rollout, a.Immutable = "0%", true }, want: map[string]Kind{}},
		"it shows nothing":     {edit: func(_, b *volume.Object) { b.Rollout = "0%" }, then: func(c *Change) { delete(c.Shown, ref("b")) }, want: map[string]Kind{}},
		"the same version":     {edit: func(a, _ *volume.Object) { a.Rollout, a.Version = "0%", version("1") }, want: map[string]Kind{}},
		"not known":            {then: func(c *Change) { c.Unknown[ref("u")] = true }, want: map[string]Kind{"u": Unknown}},
		"a moment":             {then: clock, want: map[string]Kind{"a": Moment, "b": Moment}},
		"a moment after a share": {
			edit: func(a, _ *volume.Object) { a.Rollout = "0%" }, then: clock, want: map[string]Kind{"a": Share, "b": Moment},
		},
		"required, and not shown": {then: func(c *Change) { clock(c); delete(c.Shown, ref("a")) }, want: map[string]Kind{"b": Moment}},
		"optional, and not shown": {then: func(c *Change) { clock(c); delete(c.Shown, ref("b")) }, want: map[string]Kind{"a": Moment, "b": Moment}},
	} {
		a, b := ref("a"), ref("b")
		objects := map[volume.Ref]*volume.Object{a: {Ref: a, Version: version("5")}, b: {Ref: b, Version: version("5")}}
		if test.edit != nil {
			test.edit(objects[a], objects[b])
		}
		c := &Change{
			Shown: Versions{a: version("1"), b: version("1")}, Newest: Versions{a: objects[a].Version, b: objects[b].Version}, Objects: objects,
			Unknown: map[volume.Ref]bool{}, IsOptional: func(ref volume.Ref) bool { return ref.Name == "b" }, Place: 50,
		}
		if test.then != nil {
			test.then(c)
		}
		got := map[string]Kind{}
		for ref, reason := range c.Waits(time.Unix(1e9, 0)) {
			got[ref.Name] = reason.Kind
		}
		if !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// TestClock: a pod has the same moment in each window, and it belongs to one state of the objects. The property moment of the simulation
// has many pods.
func TestClock(t *testing.T) {
	c := NewClock("a", time.Hour)
	first, second := Versions{ref("a"): version("2")}, Versions{ref("a"): version("3")}
	now := time.Unix(1e9, 0)
	moment := NextMoment("a", time.Hour, now)
	before, next := NextMoment("a", time.Hour, moment.Add(-1)), NextMoment("a", time.Hour, moment)
	if !before.Equal(moment) || next.Sub(moment) != time.Hour {
		t.Errorf("just before the moment %v it is %v, and at it %v", moment, before, next)
	}
	wantWait := func(name string, ready Versions, now, want time.Time) {
		t.Helper()
		if got := c.wait(ready, now); !got.Equal(want) {
			t.Errorf("%s: until %v, want %v", name, got, want)
		}
	}
	var no time.Time
	wantWait("a change", first, now, moment)
	wantWait("a later change", second, now.Add(time.Second), moment)
	wantWait("a clock that is set back", second, now.Add(-2*time.Hour), moment)
	wantWait("its moment", second, moment.Add(time.Second), no)
	wantWait("a retry", second, moment.Add(3*time.Hour), no)
	wantWait("a change after the retries", first, moment.Add(3*time.Hour+1), moment.Add(4*time.Hour))
	wantWait("nothing waits", nil, moment.Add(5*time.Hour), no)
	wantWait("a new change", first, moment.Add(5*time.Hour+1), moment.Add(6*time.Hour))
	wantWait("late", first, moment.Add(6*time.Hour+30*time.Minute), no)
	wantWait("a revert", nil, moment.Add(6*time.Hour+31*time.Minute), no)
	wantWait("before a moment that nobody looks at", first, moment.Add(6*time.Hour+59*time.Minute), moment.Add(7*time.Hour))
	wantWait("a missed moment", first, moment.Add(8*time.Hour), moment.Add(9*time.Hour))
}

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

// TestASplitEndsTheMoment: a moment that comes while the objects of a set don't match is over. When they match, the pod waits for its next one, or
// all pods whose moments have passed would take the change at once.
func TestASplitEndsTheMoment(t *testing.T) {
	a, b := ref("a"), ref("b")
	change := Change{
		Shown: Versions{a: version("1"), b: version("1")}, IsOptional: func(volume.Ref) bool { return false },
		IsSet: true, Place: 1, Clock: NewClock("pod", time.Hour),
	}
	look := func(revisionOfA, revisionOfB string, now time.Time) (isSplit bool, waits map[volume.Ref]Reason) {
		change.Newest, change.Objects = Versions{}, map[volume.Ref]*volume.Object{}
		for ref, revision := range map[volume.Ref]string{a: revisionOfA, b: revisionOfB} {
			change.Newest[ref] = version(revision)
			change.Objects[ref] = &volume.Object{Ref: ref, Version: version(revision), Revision: volume.Revision(revision)}
		}
		if len(change.Split()) > 0 {
			return true, nil
		}
		return false, change.Waits(now)
	}
	now := time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	moment := NextMoment("pod", time.Hour, now)
	if isSplit, waits := look("2", "2", now); isSplit || len(waits) != 2 {
		t.Fatalf("a change: split: %v, waits: %v", isSplit, waits)
	}
	if isSplit, _ := look("3", "2", now.Add(time.Second)); !isSplit {
		t.Fatal("objects of two revisions match")
	}
	isSplit, waits := look("3", "3", moment.Add(time.Minute))
	if next := "the files will show at " + moment.Add(time.Hour).Format(time.RFC3339); isSplit || !strings.Contains(waits[a].Text, next) || !strings.Contains(waits[b].Text, next) {
		t.Errorf("after the split: split: %v, waits: %v, want %q of both", isSplit, waits, next)
	}
}

func invalid() Reason {
	return Reason{Mistake, "has an annotation refvol.dev/revision that counts as none: it must have 1 to 128 bytes of letters, digits and . _ - / : @ +"}
}
