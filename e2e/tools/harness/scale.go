package harness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
)

const (
	// LongVariable is the name of a variable that asks, set to anything, for the long form of the suites that have one.
	LongVariable = "REFVOL_LONG"
	// seedVariable repeats the choices of an earlier run.
	seedVariable = "REFVOL_SEED"
)

// Scaled returns the size of a suite: short, or long where REFVOL_LONG is set, as
// `make test-long` does.
func Scaled[T any](short, long T) T {
	if os.Getenv(LongVariable) != "" {
		return long
	}
	return short
}

// Rand returns the source of a suite's choices and logs its seed, which REFVOL_SEED
// sets to repeat a run. The source is for one goroutine.
func Rand(t TB) *rand.Rand {
	t.Helper()
	return source(Seed(t))
}

// Seed returns and logs what Rand starts from, for a suite that needs a source for
// each of its parts.
func Seed(t TB) uint64 {
	t.Helper()
	seed, err := newSeed()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Logf("%s=%d", seedVariable, seed)
	return seed
}

func newSeed() (uint64, error) {
	text := os.Getenv(seedVariable)
	if text == "" {
		return rand.Uint64(), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", seedVariable, err)
	}
	return seed, nil
}

func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
