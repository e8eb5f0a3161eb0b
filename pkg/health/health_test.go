package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// a returns the sign of pod a. It is described by words: has, ready, failed, leaves, unknown, and a number of restarts.
func a(words string) Sign { return signOf("a", words) }

func signOf(uid, words string) Sign {
	s := Sign{UID: uid, Name: "shop/" + uid, Restarts: map[string]int32{"main": 0}}
	for _, word := range strings.Fields(words) {
		switch word {
		case "has":
			s.Has = true
		case "ready":
			s.Ready = true
		case "failed":
			s.Failed = true
		case "leaves":
			s.Leaves = true
		case "unknown":
			s.Unknown = true
		default:
			var n int32
			if _, err := fmt.Sscan(word, &n); err != nil {
				panic(err)
			}
			s.Restarts["main"] = n
		}
	}
	return s
}

// TestVerdict: each case has one look every five seconds. "" is a look without the pod. If it is the first one, the pod is created later. With "-"
// it is only seen later.
func TestVerdict(t *testing.T) {
	limits := Limits{Unready: 10 * time.Second, Start: time.Minute}
	allows := Limits{Restarts: 1, Unready: 10 * time.Second, Start: time.Minute}
	long := func(last string, n int) (looks []string) {
		for range n {
			looks = append(looks, last)
		}
		return looks
	}
	for name, test := range map[string]struct {
		limits Limits
		looks  []string
		// want is what is wrong, or "", or "undecided".
		want string
	}{
		"well":                                     {limits, []string{"ready", "has ready", "has ready"}, ""},
		"not ready for a moment":                   {limits, []string{"ready", "has ready", "has", "has", "has ready"}, ""},
		"not ready, and not yet for long":          {limits, []string{"ready", "has ready", "has", "has"}, "undecided"},
		"not ready any more":                       {limits, []string{"ready", "has ready", "has", "has", "has"}, "is not ready any more"},
		"ready again":                              {limits, []string{"ready", "has ready", "has", "has", "has", "has ready"}, ""},
		"not ready when it takes it":               {limits, []string{"ready", "has", "has", "has"}, "is not ready any more"},
		"not ready before it takes it":             {limits, []string{"ready", "", "", "", ""}, ""},
		"left out":                                 {limits, append([]string{"7"}, long("has 9", 20)...), ""},
		"left out until it was ready":              {limits, []string{"7", "has 7 ready", "has 7", "has 7", "has 7"}, "is not ready any more"},
		"ailing with the change at the first look": {limits, long("has", 14), "was never ready"},
		"healed by a restart after the first look": {limits, []string{"has 3", "has 4", "has 4 ready", "has 4 ready", "has 4 ready"}, ""},
		"ready for a moment in a crash loop":       {limits, []string{"has 3", "has 4 ready", "has 4 ready"}, "undecided"},
		"ready after an allowed restart":           {allows, []string{"ready", "has ready", "has 1", "has 1 ready"}, "undecided"},
		"healed, and restarted":                    {limits, []string{"has 3", "has 4", "has 4 ready", "has 5 ready"}, "restarted once"},
		"starts slowly":                            {limits, append(long("has", 10), "has ready", "has ready", "has ready"), ""},
		"new, and never ready":                     {limits, append([]string{""}, long("has", 14)...), "was never ready"},
		"new, and not ready yet":                   {limits, append([]string{""}, long("has", 5)...), "undecided"},
		"restarted":                                {limits, []string{"ready", "has ready", "has ready 1"}, "restarted once"},
		"seen late, with old restarts":             {limits, []string{"-", "has ready 3", "has ready 3"}, ""},
		"seen late, and left out":                  {limits, append([]string{"-", "7"}, long("has 9", 20)...), ""},
		"left out, and healed by a restart":        {limits, []string{"7", "has 8", "has 9 ready", "has 9 ready"}, ""},
		"left out, healed and restarted":           {limits, []string{"7", "has 8", "has 9 ready", "has 10 ready"}, "restarted once"},
		"back from a lost node":                    {limits, []string{"ready", "has ready", "has", "has unknown", "has unknown", "has unknown", "has", "has ready"}, ""},
		"back from a lost node, and not ready yet": {limits, []string{"ready", "has ready", "has", "has unknown", "has unknown", "has unknown", "has"}, "undecided"},
		"crashed as it leaves":                     {limits, []string{"ready", "has ready", "has leaves 1"}, "restarted once"},
		"restarted between the looks":              {limits, []string{"ready 3", "has ready 5"}, "restarted 2 times"},
		"restarted before":                         {limits, []string{"ready", "ready 4", "has ready 4"}, ""},
		"restarted before the command":             {limits, []string{"has ready 4", "has ready 4"}, ""},
		"new, and restarted":                       {limits, []string{"", "has ready 2"}, "restarted 2 times"},
		"restarted for good":                       {limits, append([]string{"ready", "has ready", "has ready 1"}, long("has ready 1", 9)...), "restarted once"},
		"a restart that is allowed":                {allows, []string{"ready", "has ready", "has 1", "has 1", "has 1", "has 1", "has 1 ready", "has 1 ready", "has 1 ready"}, ""},
		"two of them":                              {allows, []string{"ready", "has ready", "has ready 1", "has ready 2"}, "restarted 2 times"},
		"a restart that does not end":              {allows, append([]string{"ready", "has ready"}, long("has 1", 14)...), "is not ready any more"},
		"failed":                                   {limits, []string{"ready", "has ready", "has failed"}, "failed"},
		"leaves":                                   {limits, []string{"ready", "has ready", "has leaves", "has leaves 9", "has leaves failed"}, ""},
		"is gone":                                  {limits, []string{"ready", "has ready", ""}, ""},
		"crashed, and is gone":                     {limits, []string{"ready", "has ready", "has 1", ""}, "restarted once"},
		"crashed, and leaves":                      {limits, []string{"ready", "has ready", "has 1", "has leaves"}, "restarted once"},
		"drained while not ready for a moment":     {limits, []string{"ready", "has ready", "has", "has leaves", "has leaves", "has leaves"}, ""},
		"on a lost node":                           {limits, []string{"ready", "has ready", "has unknown", "has unknown", "has unknown 3"}, ""},
		"the change is taken back":                 {limits, []string{"ready", "has ready", "has 1", "ready 1"}, ""},
		"taken back, and taken again":              {limits, []string{"ready", "has ready", "has 1", "ready 1", "has ready 1"}, ""},
	} {
		w, now := New(test.limits), noon
		for _, look := range test.looks {
			var all []Sign
			if look != "" && look != "-" {
				s := a(look)
				if test.looks[0] == "" {
					s.Created = noon.Add(7 * time.Second)
				}
				all = append(all, s)
			}
			now = now.Add(5 * time.Second)
			w.Look(now, all)
		}
		if isLeftOut := slices.Contains(test.looks, "7") && !slices.ContainsFunc(test.looks, func(look string) bool { return strings.Contains(look, "ready") }); w.IsLeftOut("a") != isLeftOut {
			t.Errorf("%s: left out: %t", name, !isLeftOut)
		}
		v := w.Verdict(now)
		got := ""
		switch {
		case len(v.Unhealthy) > 0:
			got = v.Unhealthy[0].What
		case len(v.Undecided) > 0:
			got = "undecided"
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestLost: the watch of a step is lost if more than half of its pods are gone or not known.
func TestLost(t *testing.T) {
	w := New(Limits{Unready: time.Second, Start: time.Second})
	all := []Sign{signOf("a", "has ready"), signOf("b", "has ready"), signOf("c", "has ready"), signOf("d", "has ready"), signOf("other", "ready")}
	w.Look(noon, all)
	w.Begin()
	for i, lost := range []bool{false, false, false, true} {
		w.Look(noon.Add(time.Duration(i)*time.Second), all[i:])
		if v := w.Verdict(noon.Add(time.Duration(i) * time.Second)); v.Lost != lost || v.Takers != 4-i {
			t.Errorf("%d gone: %+v", i, v)
		}
	}
	w.Look(noon.Add(5*time.Second), []Sign{signOf("d", "has ready"), signOf("e", "has ready")})
	w.Begin()
	if v := w.Verdict(noon.Add(5 * time.Second)); v.Lost || v.Takers != 2 {
		t.Errorf("begun anew: %+v", v)
	}
}

// TestSince: a finding says when it began.
func TestSince(t *testing.T) {
	w := New(Limits{Unready: 10 * time.Second, Start: time.Minute})
	w.Look(noon, []Sign{a("ready")})
	w.Look(noon.Add(5*time.Second), []Sign{a("has")})
	w.Look(noon.Add(20*time.Second), []Sign{a("has")})
	if v := w.Verdict(noon.Add(20 * time.Second)); len(v.Unhealthy) != 1 || !v.Unhealthy[0].Since.Equal(noon.Add(5*time.Second)) || v.Unhealthy[0].Name != "shop/a" {
		t.Errorf("%+v", v)
	}
}
