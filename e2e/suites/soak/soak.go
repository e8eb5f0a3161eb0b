package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	workers   = 4
	namespace = "soak"
	// within is how long a change may take to show, on a busy machine and after a
	// restart alike.
	within = time.Minute
	// half is how long a round churns before the plugin may be restarted, and after that.
	half = 5 * time.Second
	// maxLife is how many rounds the plugin runs at most: what it loses little by little
	// only shows in one that has run for long.
	maxLife = 30
)

// soak is one run. Rounds come one after the other; the workers of a round run at once
// and end before the plugin is restarted and looked at.
type soak struct {
	out    io.Writer
	seed   uint64
	choose *rand.Rand

	dir          string
	controlPlane *controlplane.ControlPlane
	plugin       *harness.Plugin
	workers      []*worker
	// idle is what the plugin had at the start, left what it had after the last round.
	idle, left stock
	restarts   int
	// searched is how many bytes of the log have been searched for values and tokens.
	searched int64
	// life is how many more rounds the plugin runs.
	life int
}

func newSoak(out io.Writer, seed uint64) *soak {
	return &soak{out: out, seed: seed, choose: rand.New(rand.NewPCG(seed, 0))}
}

func (s *soak) start(ctx context.Context) error {
	var err error
	if s.dir, err = os.MkdirTemp("", "refvol-soak-"); err != nil {
		return err
	}
	if s.controlPlane, err = harness.StartControlPlane(ctx, s.out); err != nil {
		return err
	}
	binary, err := harness.BuildPlugin(ctx, s.dir, false, s.out)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(s.dir, "plugin.kubeconfig")
	if _, err := harness.GrantPlugin(ctx, s.controlPlane, kubeconfig); err != nil {
		return err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.controlPlane.Client().CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	s.plugin, err = harness.StartPlugin(ctx, harness.PluginOptions{
		Binary: binary, Kubeconfig: kubeconfig, Dir: filepath.Join(s.dir, "node"), Args: []string{"-v=10"}, Env: harness.TraceHeap(),
	})
	if err != nil {
		return err
	}
	for i := range workers {
		s.workers = append(s.workers, newWorker(s, i))
	}
	return nil
}

// stop ends what runs and removes what was made.
func (s *soak) stop() error {
	var errs []error
	if s.plugin != nil {
		errs = append(errs, s.plugin.Close())
	}
	if s.controlPlane != nil {
		errs = append(errs, s.controlPlane.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// run goes through rounds until the time is over.
func (s *soak) run(ctx context.Context, duration time.Duration) error {
	begin := time.Now()
	s.printf("soak for %s, seed %d\n", duration, s.seed)
	if err := s.settle(ctx); err != nil {
		return s.explain(err)
	}
	rounds, summary := 0, begin
	for over := false; !over; rounds++ {
		s.life--
		over = time.Since(begin) >= duration
		err := s.round(ctx)
		if err == nil && over {
			err = s.checkGoroutines(ctx)
		}
		if err != nil {
			return s.explain(fmt.Errorf("round %d of seed %d: %w", rounds+1, s.seed, err))
		}
		if over || time.Since(summary) >= time.Minute {
			summary = time.Now()
			s.printf("%8s  %d rounds, %d restarts, %s; left: %s\n",
				time.Since(begin).Round(time.Second), rounds+1, s.restarts, s.counts(), s.left)
		}
	}
	s.printf("PASS: %d rounds, %s; no value or token in %d KiB of log\n", rounds, s.counts(), s.searched>>10)
	return nil
}

// settle takes stock of the plugin once it has made what it makes once and keeps.
func (s *soak) settle(ctx context.Context) error {
	if err := errors.Join(s.churn(ctx), s.drain(ctx)); err != nil {
		return err
	}
	var err error
	if s.idle, err = s.takeStock(ctx); err != nil {
		return err
	}
	if s.idle.goroutines, err = s.plugin.Quit(ctx); err != nil {
		return err
	}
	if err := s.searchLog(ctx); err != nil {
		return err
	}
	s.left = s.idle
	s.printf("without volumes the plugin has: %s\n", s.idle)
	return s.plugin.Start(ctx)
}

// round churns, may restart the plugin under its volumes, churns on, and has it end
// with nothing.
func (s *soak) round(ctx context.Context) error {
	steps := []func(context.Context) error{s.churn, s.checkLive, s.churn, s.checkLive, s.drain, s.checkIdle}
	if s.life < 0 {
		s.life = s.choose.IntN(maxLife)
		s.restarts++
		switch s.choose.IntN(3) {
		case 0:
			steps = slices.Insert(steps, 2, s.restart(s.plugin.Kill), s.checkLive)
		case 1:
			steps = slices.Insert(steps, 2, s.restart(func() error { return s.plugin.Terminate(ctx) }), s.checkLive)
		default:
			steps = append(steps, s.checkGoroutines)
		}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// each has all workers do something at once.
func (s *soak) each(do func(*worker) error) error {
	errs := make([]error, len(s.workers))
	var group sync.WaitGroup
	for i, w := range s.workers {
		group.Go(func() { errs[i] = do(w) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (s *soak) churn(ctx context.Context) error {
	end := time.Now().Add(half/2 + rand.N(half))
	return s.each(func(w *worker) error {
		for time.Now().Before(end) {
			if err := w.act(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// drain unpublishes every volume.
func (s *soak) drain(ctx context.Context) error {
	return s.each(func(w *worker) error { return w.drain(ctx) })
}

// restart returns a step that ends the plugin, changes objects meanwhile, and starts it.
func (s *soak) restart(end func() error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := errors.Join(end(), s.searchLog(ctx)); err != nil {
			return err
		}
		if err := s.each(func(w *worker) error { return w.meanwhile(ctx) }); err != nil {
			return err
		}
		return s.plugin.Start(ctx)
	}
}

func (s *soak) counts() string {
	var publishes, updates, unpublishes int
	for _, w := range s.workers {
		publishes, updates, unpublishes = publishes+w.publishes, updates+w.updates, unpublishes+w.unpublishes
	}
	return fmt.Sprintf("%d publishes, %d updates, %d unpublishes", publishes, updates, unpublishes)
}

// explain adds the last lines of the plugin's log to an error.
func (s *soak) explain(err error) error {
	return fmt.Errorf("%w\nlast lines of the plugin's log:\n%s", err, s.plugin.LogTail())
}

func (s *soak) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }
