// Command soak runs the plugin's real binary for as long as it is told to, on a real
// API server, with the program in the place of a kubelet: volumes are published,
// updated and unpublished at random, and the plugin is restarted now and then. All
// along, each volume has to show what its objects hold, and the plugin must own
// nothing that it has no volume for. A summary comes every minute; the status is 0 only
// if all of it was so.
//
// The choices come from a seed, which is printed; what the machine makes of them is
// its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func main() {
	duration := flag.Duration("duration", 10*time.Minute, "how long to run")
	seed := flag.Uint64("seed", rand.Uint64(), "what the choices come from")
	flag.Parse()
	status, inside, err := harness.Sandbox()
	if inside {
		err = run(*duration, *seed)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func run(duration time.Duration, seed uint64) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := newSoak(os.Stdout, seed)
	// What is running is stopped with its own time, also after a Ctrl-C.
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	return s.run(ctx, duration)
}
