package harness

import (
	"flag"
	"regexp"
	"slices"
	"testing"
)

func TestScaled(t *testing.T) {
	t.Setenv(LongVariable, "")
	if got := Scaled(1, 2); got != 1 {
		t.Errorf("without %s = %d, want the short form", LongVariable, got)
	}
	t.Setenv(LongVariable, "1")
	if got := Scaled(1, 2); got != 2 {
		t.Errorf("with %s = %d, want the long form", LongVariable, got)
	}
}

func TestSeedRepeatsARun(t *testing.T) {
	t.Setenv(seedVariable, "")
	if a, b := Seed(t), Seed(t); a == b {
		t.Errorf("two runs have one seed, %d", a)
	}
	t.Setenv(seedVariable, "18446744073709551615")
	if a, b := Rand(t).Uint64(), Rand(t).Uint64(); a != b {
		t.Errorf("one seed made %d and %d", a, b)
	}
}

func TestSome(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	t.Setenv(SampleVariable, "")
	if got := Some(t, 3, all); len(got) != len(all) {
		t.Errorf("without %s it is %v", SampleVariable, got)
	}
	t.Setenv(SampleVariable, "1")
	seen := map[int]bool{}
	for range 200 {
		got := Some(t, 3, all)
		if len(got) != 3 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != 3 {
			t.Fatalf("some 3 are %v", got)
		}
		for _, one := range got {
			seen[one] = true
		}
	}
	if len(seen) != len(all) {
		t.Errorf("200 samples hold %d of %d cases", len(seen), len(all))
	}
	if got := Some(t, 11, all); len(got) != len(all) {
		t.Errorf("more than there are, are %v", got)
	}
}

// TestChooseThird sets the flag of this very program, whose tests have begun to run.
func TestChooseThird(t *testing.T) {
	run := flag.Lookup("test.run").Value
	before := run.String()
	defer func() {
		if err := run.Set(before); err != nil {
			t.Error(err)
		}
	}()
	all, err := listTests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	choices := map[string]bool{}
	for _, test := range []struct {
		sample, seed, given string
		some                bool
	}{
		{sample: "", given: ""},
		{sample: "1", given: "^TestSome$"},
		{sample: "1", seed: "7", some: true},
		{sample: "1", seed: "7", some: true},
		{sample: "1", seed: "8", some: true},
	} {
		t.Setenv(SampleVariable, test.sample)
		t.Setenv(seedVariable, test.seed)
		if err := run.Set(test.given); err != nil {
			t.Fatal(err)
		}
		if err := ChooseThird(t.Context(), t.Output()); err != nil {
			t.Fatal(err)
		}
		pattern := run.String()
		if !test.some {
			if pattern != test.given {
				t.Errorf("%+v: runs %q", test, pattern)
			}
			continue
		}
		chosen := 0
		for _, name := range all {
			if regexp.MustCompile(pattern).MatchString(name) {
				chosen++
			}
		}
		if chosen != (len(all)+2)/3 {
			t.Errorf("%+v: %d of %d tests are chosen", test, chosen, len(all))
		}
		choices[pattern] = true
	}
	if len(choices) != 2 {
		t.Errorf("two seeds make %d choices", len(choices))
	}
}
