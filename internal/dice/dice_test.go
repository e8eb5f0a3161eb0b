package dice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestSeeds(t *testing.T) {
	for name, test := range map[string]struct {
		fixed     int
		one, many string
		want      []uint64
		err       string
	}{
		"fixed":         {3, "", "", []uint64{0, 1, 2}, ""},
		"nothing to do": {0, "", "", nil, "no seeds"},
		"one":           {3, "18446744073709551615", "", []uint64{18446744073709551615}, ""},
		"no number":     {3, "x", "", nil, "REFVOL_SEED"},
		"no count":      {3, "", "x", nil, "REFVOL_SEEDS=x"},
		"none":          {3, "", "0", nil, "REFVOL_SEEDS=0"},
		"a seed":        {3, "", "1834756345872", nil, "REFVOL_SEEDS=1834756345872"},
		"both":          {3, "1", "2", nil, "only one of them"},
		"one that is 0": {3, "0", "", []uint64{0}, ""},
	} {
		got, err := seedsOf(test.one, test.many, test.fixed)
		if !slices.Equal(got, test.want) || (err == nil) != (test.err == "") || !strings.Contains(fmt.Sprint(err), test.err) {
			t.Errorf("%s: got %d, %v, want %d, %q", name, got, err, test.want, test.err)
		}
	}
}

// New seeds are others in each run. A seed repeats its choices, and another seed makes others.
func TestChoices(t *testing.T) {
	t.Setenv(seedVariable, "")
	t.Setenv(seedsVariable, "4")
	all := append(Seeds(t, 1), Seeds(t, 1)...)
	slices.Sort(all)
	if len(slices.Compact(all)) != 8 {
		t.Errorf("got %d", all)
	}
	t.Setenv(seedsVariable, "")
	var got []uint64
	for range 2 {
		Each(t, 2, func(_ *testing.T, random *rand.Rand) { got = append(got, random.Uint64()) })
	}
	if len(got) != 4 || !slices.Equal(got[:2], got[2:]) || got[0] == got[1] {
		t.Errorf("got %d", got)
	}
}
