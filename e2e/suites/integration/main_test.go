// Package integration tests the plugin's real binary, built with the race detector but
// where it is killed a hundred times or timed, against a real etcd and API server, over
// its real socket and with real mounts. The tests play the kubelet. They need no root
// where user namespaces work.
package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// suite is what all tests share. A test that stops the API server starts it again, and
// is not parallel: go runs parallel tests once all others have ended. Those may do
// nothing that disturbs a test of another node.
type suite struct {
	*harness.Lab
	// plain builds the plugin without the race detector, once: in a virtual machine there is no compiler.
	plain func() (string, error)
	// prometheus builds promtool, once.
	prometheus func() (*harness.Prometheus, error)
}

// shared is set by TestMain before any test runs, and constant from then on.
var shared *suite

func TestMain(m *testing.M) {
	// Parallel tests mostly wait. In their long forms many work all the time, and 20 of these would run into each other's time
	// limits. -parallel beats it.
	if err := flag.Set("test.parallel", harness.Scaled("20", "4")); err != nil {
		panic(err)
	}
	os.Exit(harness.Main(m, func(ctx context.Context) (func() error, error) {
		s, err := newSuite(ctx)
		shared = s
		return s.stop, err
	}))
}

func newSuite(ctx context.Context) (*suite, error) {
	fmt.Fprintln(os.Stderr, "building refvol-plugin with the race detector")
	lab, err := harness.StartLab(ctx, true, os.Stderr)
	return &suite{
		Lab: lab,
		plain: sync.OnceValues(func() (string, error) {
			fmt.Fprintln(os.Stderr, "building refvol-plugin")
			return harness.BuildPlugin(ctx, lab.Dir, false, os.Stderr)
		}),
		prometheus: sync.OnceValues(func() (*harness.Prometheus, error) { return harness.BuildPrometheus(ctx, lab.Dir, os.Stderr) }),
	}, err
}

func (s *suite) stop() error { return errors.Join(s.searchEvents(), s.Stop()) }

// searchEvents looks for values and tokens in every event of the run, of whichever
// namespace.
func (s *suite) searchEvents() error {
	events, err := harness.EventLeaks(context.Background(), s.Client(), metav1.NamespaceAll)
	fmt.Fprintf(os.Stderr, "searched %d events for values and tokens\n", events)
	return err
}
