package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/goleak"

	"github.com/refvol/refvol/internal/sandbox"
)

// Tests is what Main needs of a *testing.M.
type Tests interface{ Run() int }

// Main is the body of a TestMain. In the sandbox it calls setUp, runs the tests and calls the function that
// setUp returned, and then fails if goroutines, file descriptors or mounts are left that were not there
// before. With known it overlooks goroutines that a library never ends. It returns the exit status.
// Outside it does nothing but to print the names of the tests.
func Main(m Tests, setUp func(context.Context) (tearDown func() error, err error), known ...goleak.Option) int {
	return sandbox.Run(m, func() (int, error) {
		before, err := takeStock()
		if err != nil {
			return 1, err
		}
		status, err := runTests(m, setUp)
		if err == nil {
			err = before.compare(known...)
		}
		return status, err
	})
}

func runTests(m Tests, setUp func(context.Context) (func() error, error)) (status int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tearDown, err := setUp(ctx)
	if err != nil {
		return 1, fmt.Errorf("set up: %w", err)
	}
	defer func() { err = errors.Join(err, tearDown()) }()
	return m.Run(), nil
}

// stock is what a process must have given back at its end.
type stock struct {
	descriptors map[string]int
	mounts      map[string]int
}

func takeStock() (stock, error) {
	open, err := descriptors(os.Getpid())
	if err != nil {
		return stock{}, err
	}
	mounts, err := Mounts()
	if err != nil {
		return stock{}, err
	}
	s := stock{descriptors: make(map[string]int), mounts: make(map[string]int)}
	for _, d := range open {
		// The runtime makes these two for itself at the first use of the network.
		if d != "anon_inode:[eventpoll]" && d != "anon_inode:[eventfd]" {
			s.descriptors[d]++
		}
	}
	for _, m := range mounts {
		s.mounts[fmt.Sprintf("%s (%s from %s)", m.Target, m.Type, m.Source)]++
	}
	return s, nil
}

// compare returns an error that names everything that is there now and was not
// before. What ends by itself gets a moment for it.
func (before stock) compare(known ...goleak.Option) error {
	leftovers := func() error {
		now, err := takeStock()
		if err != nil {
			return err
		}
		return errors.Join(
			goleak.Find(known...),
			added("file descriptor", before.descriptors, now.descriptors),
			added("mount", before.mounts, now.mounts))
	}
	return Poll(context.Background(), time.Minute, 50*time.Millisecond, leftovers)
}

func added(what string, before, now map[string]int) error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if n := now[name] - before[name]; n > 0 {
			lines = append(lines, fmt.Sprintf("%d leaked %s: %s", n, what, name))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines, "\n"))
}
