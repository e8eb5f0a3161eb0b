package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"go.uber.org/goleak"

	"github.com/refvol/refvol/internal/sandbox"
)

// Tests is what Main needs of a *testing.M.
type Tests interface{ Run() int }

// Main is the body of a TestMain. In the sandbox it calls setUp, if it is not nil, runs the tests and calls the function
// that setUp returned, and then fails if goroutines, file descriptors or mounts are left that were not there before. With known
// it overlooks goroutines that a library never ends. It returns the exit status. Outside it does nothing but to print
// the names of the tests.
func Main(m Tests, setUp func(context.Context) (tearDown func() error, err error), known ...goleak.Option) int {
	return sandbox.Run(m, func() (int, error) {
		before, err := takeStock()
		if err != nil {
			return 1, err
		}
		status, err := runTests(m, setUp)
		if err != nil {
			return status, err
		}
		// What ends by itself gets a moment for it.
		return status, Poll(context.Background(), time.Minute, 50*time.Millisecond, func() error {
			now, err := takeStock()
			return errors.Join(err, goleak.Find(known...), added(before, now))
		})
	})
}

func runTests(m Tests, setUp func(context.Context) (func() error, error)) (status int, err error) {
	if setUp == nil {
		return m.Run(), nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tearDown, err := setUp(ctx)
	if err != nil {
		return 1, fmt.Errorf("set up: %w", err)
	}
	defer func() { err = errors.Join(err, tearDown()) }()
	return m.Run(), nil
}

// takeStock counts what a process must have given back at its end, by what it is.
func takeStock() (map[string]int, error) {
	open, err := descriptors(os.Getpid())
	if err != nil {
		return nil, err
	}
	mounts, err := Mounts()
	stock := make(map[string]int)
	for _, d := range open {
		// The runtime makes these two for itself at the first use of the network.
		if d != "anon_inode:[eventpoll]" && d != "anon_inode:[eventfd]" {
			stock["file descriptor: "+d]++
		}
	}
	for _, m := range mounts {
		stock[fmt.Sprintf("mount: %s (%s from %s)", m.Target, m.Type, m.Source)]++
	}
	return stock, err
}

// added returns an error that names everything that is there now and was not before.
func added(before, now map[string]int) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if n := now[name] - before[name]; n > 0 {
			errs = append(errs, fmt.Errorf("%d leaked %s", n, name))
		}
	}
	return errors.Join(errs...)
}
