package harness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
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

// Rand returns a source of a suite's choices and logs the run's seed, which REFVOL_SEED
// sets to repeat it. The source is for one goroutine.
func Rand(t TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Seed returns and logs what each Rand of this process starts from, for a suite that needs a source for
// each of its parts.
func Seed(t TB) uint64 {
	t.Helper()
	seed, err := theSeed()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Logf("%s=%d", seedVariable, seed)
	return seed
}

// theSeed is one for the whole run, so that one variable repeats it.
var theSeed = sync.OnceValues(func() (uint64, error) { //nolint:gochecknoglobals // A constant of the process.
	text := os.Getenv(seedVariable)
	if text == "" {
		return rand.Uint64(), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", seedVariable, err)
	}
	return seed, nil
})
