package publisher

import (
	"fmt"
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

func TestShareOf(t *testing.T) {
	for text, want := range map[string]int{"": 100, "0%": 0, "7%": 7, "10%": 10, "100%": 100} {
		if got, isValid := shareOf(&volume.Object{Rollout: text}); got != want || !isValid {
			t.Errorf("%q: %d, %t", text, got, isValid)
		}
	}
	for _, text := range []string{"10", "%", "101%", "-1%", "1.5%", " 1%", "1%\n", "00%", "010%", "ten"} {
		if got, isValid := shareOf(&volume.Object{Rollout: text}); got != 0 || isValid {
			t.Errorf("%q: %d, %t", text, got, isValid)
		}
	}
	if got, _ := shareOf(&volume.Object{Rollout: "0%", Immutable: true}); got != 100 {
		t.Errorf("immutable: %d", got)
	}
}

// TestPlaceOf: pods' places are spread over all percents, and the command computes the same places.
func TestPlaceOf(t *testing.T) {
	for uid, want := range map[types.UID]int{"": 38, "a": 97, "uid-v1": 42} {
		if got := volume.RolloutPlace(uid); got != want {
			t.Errorf("%q: %d, want %d", uid, got, want)
		}
	}
	const pods = 20_000
	var counts [101]int
	for i := range pods {
		counts[volume.RolloutPlace(types.UID(fmt.Sprintf("%08x-6d3e-4c1b-9f0a-5b2c7d%06x", i*2654435761, i)))]++
	}
	for i, n := range counts[1:] {
		if n < pods/100*7/10 || n > pods/100*13/10 {
			t.Errorf("%d of %d pods at %d", n, pods, i+1)
		}
	}
}

// TestHeldTogether: objects are held with the changed objects of their files, unless one of these must not wait.
func TestHeldTogether(t *testing.T) {
	a, b, c, d := configMap("a"), configMap("b"), configMap("c"), configMap("d")
	version := func(n string) volume.Version { return volume.Version{UID: "u", ResourceVersion: n} }
	shown := record.Versions{a: version("1"), b: version("1"), c: version("1"), d: version("1")}
	newest := record.Versions{a: version("2"), b: version("2"), c: version("2"), d: version("1")}
	for name, tt := range map[string]struct {
		waiting          []volume.Ref
		atOnce           map[volume.Ref]bool
		before, changing [][]volume.Ref
		want             []volume.Ref
	}{
		"alone":                              {waiting: []volume.Ref{a}, changing: [][]volume.Ref{{a}, {b}}, want: []volume.Ref{a}},
		"no file changes":                    {waiting: []volume.Ref{a}, before: [][]volume.Ref{{a}}, changing: [][]volume.Ref{{b}}},
		"a file with another":                {waiting: []volume.Ref{a}, changing: [][]volume.Ref{{a, b}, {c}}, want: []volume.Ref{a, b}},
		"over two files":                     {waiting: []volume.Ref{a}, changing: [][]volume.Ref{{a, b}, {b, c}}, want: []volume.Ref{a, b, c}},
		"over one that is the same":          {waiting: []volume.Ref{a}, changing: [][]volume.Ref{{a, d}, {d, c}}, want: []volume.Ref{a}},
		"a file that would not change":       {waiting: []volume.Ref{a}, before: [][]volume.Ref{{a, b}}, changing: [][]volume.Ref{{a}}, want: []volume.Ref{a, b}},
		"a file that must change":            {waiting: []volume.Ref{a}, atOnce: map[volume.Ref]bool{b: true}, changing: [][]volume.Ref{{a, b}, {c}}},
		"one that must, beyond what is same": {waiting: []volume.Ref{a}, atOnce: map[volume.Ref]bool{b: true}, changing: [][]volume.Ref{{a, d}, {d, b}}, want: []volume.Ref{a}},
	} {
		r := rollout{shown: shown, newest: newest, waiting: tt.waiting, atOnce: tt.atOnce, before: tt.before, changing: tt.changing}
		want := record.Versions{}
		for _, ref := range tt.want {
			want[ref] = version("1")
		}
		if got := r.held(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
