package dice

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// recorder is a test that only records what happens to it.
type recorder struct{ log, fatal string }

func (r *recorder) Helper() {}

func (r *recorder) Logf(format string, args ...any) { r.log += fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// seeds calls Seeds in a goroutine that Fatalf may end.
func (r *recorder) seeds(fixed int) (got []uint64) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		got = Seeds(r, fixed)
	}()
	<-done
	return got
}

func TestSeeds(t *testing.T) {
	for name, test := range map[string]struct {
		one, many string
		want      []uint64
		fatal     string
	}{
		"fixed":         {"", "", []uint64{0, 1, 2}, ""},
		"one":           {"18446744073709551615", "", []uint64{18446744073709551615}, ""},
		"no number":     {"x", "", nil, "REFVOL_SEED"},
		"no count":      {"", "x", nil, "REFVOL_SEEDS=x"},
		"none":          {"", "0", nil, "REFVOL_SEEDS=0"},
		"a seed":        {"", "1834756345872", nil, "REFVOL_SEEDS=1834756345872"},
		"both":          {"1", "2", nil, "only one of them"},
		"one that is 0": {"0", "", []uint64{0}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(seedVariable, test.one)
			t.Setenv(seedsVariable, test.many)
			r := &recorder{}
			got := r.seeds(3)
			if !slices.Equal(got, test.want) || !strings.Contains(r.fatal, test.fatal) || (r.fatal == "") != (test.fatal == "") {
				t.Errorf("got %d, %q, want %d, %q", got, r.fatal, test.want, test.fatal)
			}
			if test.fatal == "" && !strings.Contains(r.log, fmt.Sprint(test.want)) {
				t.Errorf("the log %q has no %d", r.log, test.want)
			}
		})
	}
}

// TestNoSeeds: a test that would do nothing fails.
func TestNoSeeds(t *testing.T) {
	t.Setenv(seedVariable, "")
	t.Setenv(seedsVariable, "")
	if r := (&recorder{}); r.seeds(0) != nil || r.fatal == "" {
		t.Errorf("it goes on: %q", r.log)
	}
}

// TestNewSeeds are others in each run.
func TestNewSeeds(t *testing.T) {
	t.Setenv(seedVariable, "")
	t.Setenv(seedsVariable, "4")
	r := &recorder{}
	all := append(r.seeds(1), r.seeds(1)...)
	slices.Sort(all)
	if len(slices.Compact(all)) != 8 {
		t.Errorf("got %d: %s", all, r.fatal)
	}
}

// TestEach: a seed repeats its choices, and another seed makes others.
func TestEach(t *testing.T) {
	t.Setenv(seedVariable, "")
	t.Setenv(seedsVariable, "")
	var first, again []uint64
	Each(t, 3, func(_ *testing.T, random *rand.Rand) { first = append(first, random.Uint64()) })
	Each(t, 3, func(_ *testing.T, random *rand.Rand) { again = append(again, random.Uint64()) })
	if len(first) != 3 || !slices.Equal(first, again) || first[0] == first[1] {
		t.Errorf("got %d, then %d", first, again)
	}
}
