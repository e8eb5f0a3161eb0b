package harness

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
)

const (
	// LongVariable is the name of a variable that asks, set to anything, for the long form of the suites that have
	// one.
	LongVariable = "REFVOL_LONG"
	// seedVariable repeats the choices of an earlier run.
	seedVariable = "REFVOL_SEED"
)

// Scaled returns the size of a suite: short, or long where REFVOL_LONG is set, as `make test-long` does.
func Scaled[T any](short, long T) T {
	if os.Getenv(LongVariable) != "" {
		return long
	}
	return short
}

// Rand returns a source of a suite's choices, which starts from Seed. It is for one goroutine.
func Rand(t TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Seed returns and logs what each Rand of this process starts from, for a suite that needs a source for each of its
// parts. REFVOL_SEED sets it, to repeat a run.
func Seed(t TB) uint64 {
	t.Helper()
	seed := randomSeed()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("%s=%d", seedVariable, seed)
	return seed
}

var randomSeed = sync.OnceValue(rand.Uint64) //nolint:gochecknoglobals // One for the whole run, so that one variable repeats it.
