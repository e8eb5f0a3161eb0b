// Package dice returns the seeds of random tests. By default these are fixed, so that a change fails because of what it changes. Nightly runs
// ask for new ones. The package must not know what is tested.
package dice

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

const (
	// seedVariable repeats the run with one seed.
	seedVariable = "REFVOL_SEED"
	// seedsVariable is the number of new random seeds that each test gets instead of its fixed ones.
	seedsVariable = "REFVOL_SEEDS"
	// maxSeeds prevents a seed in seedsVariable from running for years.
	maxSeeds = 1_000_000
)

// Seeds returns and logs the seeds of a test: 0 to fixed-1, or the one of REFVOL_SEED, or as many random ones as REFVOL_SEEDS says.
func Seeds(t testing.TB, fixed int) []uint64 {
	t.Helper()
	seeds, err := seedsOf(os.Getenv(seedVariable), os.Getenv(seedsVariable), fixed)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the seeds are %d; %s repeats one", seeds, seedVariable)
	return seeds
}

func seedsOf(one, many string, fixed int) (seeds []uint64, err error) {
	switch {
	case one != "" && many != "":
		return nil, fmt.Errorf("%s=%s and %s=%s: only one of them can be set", seedVariable, one, seedsVariable, many)
	case one != "":
		seed, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", seedVariable, err)
		}
		return []uint64{seed}, nil
	case many != "":
		n, err := strconv.Atoi(many)
		if err != nil || n < 1 || n > maxSeeds {
			return nil, fmt.Errorf("%s=%s: want a number from 1 to %d", seedsVariable, many, maxSeeds)
		}
		for range n {
			seeds = append(seeds, rand.Uint64())
		}
		return seeds, nil
	case fixed < 1:
		return nil, errors.New("the test has no seeds")
	}
	for seed := range fixed {
		seeds = append(seeds, uint64(seed))
	}
	return seeds, nil
}

// Each runs a test once for each of its seeds, with a source that starts from it. A test that fails logs how to repeat it.
func Each(t *testing.T, fixed int, test func(t *testing.T, random *rand.Rand)) {
	t.Helper()
	for _, seed := range Seeds(t, fixed) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Logf("%s=%d repeats this", seedVariable, seed)
			test(t, New(seed))
		})
	}
}

// New returns the source that starts from a seed. It is for one goroutine.
func New(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
