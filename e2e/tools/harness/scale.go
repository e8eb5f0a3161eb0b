package harness

import (
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
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Seed returns and logs what Rand starts from, for a suite that needs a source for
// each of its parts.
func Seed(t TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("%s=%d", seedVariable, seed)
	return seed
}
