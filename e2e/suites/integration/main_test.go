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
	"path/filepath"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// suite is what all tests share. A test that stops the API server starts it again, and
// is not parallel: go runs parallel tests once all others have ended. Those may do
// nothing that disturbs a test of another node.
type suite struct {
	*controlplane.ControlPlane
	dir string
	// plugin is the program under test, kubeconfig has the rights that deploy/base
	// gives it.
	plugin, kubeconfig string
	// rules are what rulesOf has returned.
	rules sync.Map
	// plain builds the plugin without the race detector, once: in a virtual machine there is no compiler.
	plain func() (string, error)
	// prometheus builds what asks it, once.
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

func newSuite(ctx context.Context) (_ *suite, err error) {
	s := &suite{}
	s.plain = sync.OnceValues(func() (string, error) {
		fmt.Fprintln(os.Stderr, "building refvol-plugin")
		return harness.BuildPlugin(ctx, s.dir, false, os.Stderr)
	})
	s.prometheus = sync.OnceValues(func() (*harness.Prometheus, error) { return harness.BuildPrometheus(ctx, s.dir, os.Stderr) })
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "refvol-it-"); err != nil {
		return s, err
	}
	if s.ControlPlane, err = harness.StartControlPlane(ctx, os.Stderr); err != nil {
		return s, err
	}
	fmt.Fprintln(os.Stderr, "building refvol-plugin with the race detector")
	if s.plugin, err = harness.BuildPlugin(ctx, s.dir, true, os.Stderr); err != nil {
		return s, err
	}
	s.kubeconfig = filepath.Join(s.dir, "plugin.kubeconfig")
	_, err = harness.GrantPlugin(ctx, s.ControlPlane, s.kubeconfig)
	return s, err
}

func (s *suite) stop() error {
	var err error
	if s.ControlPlane != nil {
		err = errors.Join(s.searchEvents(), s.ControlPlane.Stop())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// searchEvents looks for values and tokens in every event of the run, of whichever
// namespace.
func (s *suite) searchEvents() error {
	events, err := harness.EventLeaks(context.Background(), s.Client(), metav1.NamespaceAll)
	fmt.Fprintf(os.Stderr, "searched %d events for values and tokens\n", events)
	return err
}
