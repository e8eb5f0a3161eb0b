package harness

import "testing"

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
