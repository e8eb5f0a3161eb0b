package harness

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	// LongVariable is the name of a variable that asks, set to anything, for the long form of the suites that have one.
	LongVariable = "REFVOL_LONG"
	// SampleVariable asks, set to anything, for some tests and cases only of the suites that take long:
	// those that a seed chooses. `make test` sets it; CI runs all, and so does whoever runs go test.
	SampleVariable = "REFVOL_SAMPLE"
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

func sampled() bool { return os.Getenv(SampleVariable) != "" }

// Some returns n of all cases where REFVOL_SAMPLE is set, and all of them elsewhere. Each case is
// as likely as any other, and they keep their order.
func Some[E any](t TB, n int, all []E) []E {
	t.Helper()
	if n >= len(all) || !sampled() {
		return all
	}
	return choose(Rand(t), n, all)
}

func choose[E any](random *rand.Rand, n int, all []E) []E {
	chosen := random.Perm(len(all))[:n]
	slices.Sort(chosen)
	some := make([]E, n)
	for i, index := range chosen {
		some[i] = all[index]
	}
	return some
}

// ChooseThird has the calling test program run a third of its tests where REFVOL_SAMPLE is set, unless a
// flag says which ones. It is for the function that sets a suite up, and says on out what it chose.
func ChooseThird(ctx context.Context, out io.Writer) error {
	run := flag.Lookup("test.run")
	if !sampled() || run == nil || run.Value.String() != "" {
		return nil
	}
	seed, err := newSeed()
	if err != nil {
		return err
	}
	all, err := listTests(ctx)
	if err != nil {
		return err
	}
	third := choose(source(seed), (len(all)+2)/3, all)
	fmt.Fprintf(out, "%s=%d chose %d of %d tests\n", seedVariable, seed, len(third), len(all))
	return run.Value.Set("^(" + strings.Join(third, "|") + ")$")
}

// listTests returns the names of the calling program's tests. Main lets it tell them without a set-up.
func listTests(ctx context.Context) ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	list, err := exec.CommandContext(ctx, program, "-test.list=^Test").Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	names := regexp.MustCompile(`(?m)^Test\w*$`).FindAllString(string(list), -1)
	if len(names) == 0 {
		return nil, fmt.Errorf("list the tests: there are none in %q", list)
	}
	return names, nil
}
