// Package world is what the suites share that test the plugin's real binary, built with the race detector but where it is killed a hundred
// times or timed, against a real etcd and API server, over its real socket and with real mounts. The tests play the kubelet. They need no
// root where user namespaces work.
//
// It owns the Lab of a suite, the Node of a test, what a test expects of volumes and metrics, and accounts with their rights. It has no
// state of its own: each suite keeps its Lab. It must not know what a suite proves, and what one suite alone uses is in that suite.
//
// A test of an update, with the suite's lab:
//
//	n := lab.NewNode(t)
//	n.ConfigMap("app", map[string]string{"key": "1"})
//	v := n.Published("app")
//	n.ConfigMap("app", map[string]string{"key": "2"})
//	n.Arrives(v, "key", "2", world.Soon)
package world

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

// Lab is what all tests of a suite share. A test that stops the API server starts it again, and is not parallel: go runs parallel tests
// once all others have ended. Those may do nothing that disturbs a test of another node.
type Lab struct {
	*harness.Lab
	// Plain builds the plugin without the race detector, once: in a virtual machine there is no compiler.
	Plain func() (string, error)
	// Prometheus builds promtool, once.
	Prometheus func() (*harness.Prometheus, error)
}

// Main is the body of a suite's TestMain, whose exit status it returns. It sets lab before any test runs.
func Main(m *testing.M, lab **Lab) int {
	// Parallel tests mostly wait. In their long forms many work all the time, and 20 of these would run into each other's time limits.
	// -parallel beats it.
	if err := flag.Set("test.parallel", harness.Scaled("20", "4")); err != nil {
		panic(err)
	}
	return harness.Main(m, func(ctx context.Context) (func() error, error) {
		l, err := newLab(ctx)
		*lab = l
		return l.stop, err
	})
}

func newLab(ctx context.Context) (*Lab, error) {
	fmt.Fprintln(os.Stderr, "building refvol-plugin with the race detector")
	lab, err := harness.StartLab(ctx, true, os.Stderr)
	return &Lab{
		Lab: lab,
		Plain: sync.OnceValues(func() (string, error) {
			fmt.Fprintln(os.Stderr, "building refvol-plugin")
			return harness.BuildPlugin(ctx, lab.Dir, false, os.Stderr)
		}),
		Prometheus: sync.OnceValues(func() (*harness.Prometheus, error) { return harness.BuildPrometheus(ctx, lab.Dir, os.Stderr) }),
	}, err
}

func (l *Lab) stop() error { return errors.Join(l.searchEvents(), l.Stop()) }

// searchEvents looks for values and tokens in every event of the run, of whichever namespace.
func (l *Lab) searchEvents() error {
	events, err := harness.EventLeaks(context.Background(), l.Client(), metav1.NamespaceAll)
	fmt.Fprintf(os.Stderr, "searched %d events for values and tokens\n", events)
	return err
}
