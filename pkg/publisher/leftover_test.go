package publisher

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// stuckWriter is a writer that can't remove earlier generations while stuck.
type stuckWriter struct {
	treeWriter
	*obstacle
}

// obstacle says whether a writer is stuck, and counts how often it was asked to prune.
type obstacle struct {
	stuck  atomic.Bool
	prunes atomic.Int64
}

func (w *stuckWriter) Prune(ctx context.Context, dir *os.Root, before time.Time) error {
	w.prunes.Add(1)
	if w.stuck.Load() {
		return fmt.Errorf("remove ..2001: a: %w", unix.EBUSY)
	}
	return w.treeWriter.Prune(ctx, dir, before)
}

func (w *stuckWriter) Stale() bool { return w.stuck.Load() || w.treeWriter.Stale() }

func (w *stuckWriter) StaleSince() time.Time {
	if !w.treeWriter.Stale() {
		return time.Time{}
	}
	return w.treeWriter.StaleSince()
}

// A generation that can't be removed keeps no update from the files. It is told and logged once,
// is never taken for gone, and goes once it can.
func TestAGenerationThatStaysStopsNoUpdate(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			inBubble(t, func(e *env) {
				var o obstacle
				newOne := e.p.newWriter
				e.p.newWriter = func(spec *volume.Spec, opts writer.Options) treeWriter {
					return &stuckWriter{newOne(spec, opts), &o}
				}
				e.objects.put(configMap("app"), "a", "0")
				r := e.request("v1", "configMap", "app", "writeStrategy", strategy)
				e.publish(r)
				o.stuck.Store(true)
				e.objects.put(configMap("app"), "a", "1")
				after(2 * pruneTime)
				e.settle()
				e.wantFiles(r, "a", "1")
				e.wantProblem(r, "remove ..2001: a: device or resource busy")
				e.wantEvents("VolumeUpdateFailed: prune volume v1: remove ..2001: a: device or resource busy")
				for _, value := range []string{"2", "3", "4"} {
					e.objects.put(configMap("app"), "a", value)
					e.settle()
					e.wantFiles(r, "a", value)
					e.wantProblem(r, "device or resource busy") // also before it is tried again
					after(2 * pruneTime)
					e.settle()
					e.wantProblem(r, "device or resource busy")
				}
				before := o.prunes.Load()
				after(time.Minute)
				if n := o.prunes.Load() - before; n < 10 || n > 40 {
					t.Errorf("it was tried %d times in a minute", n)
				}
				e.wantEvents()
				if lines := e.logs.with("device or resource busy"); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
				if n := e.mounts.open(); n != 0 {
					t.Errorf("%d handles are open a minute after the last write", n)
				}
				o.stuck.Store(false)
				after(retryMax)
				e.settle()
				e.wantProblem(r, "")
				if n := e.generations(r); n != 1 {
					t.Errorf("%d generations", n)
				}
				if lines := e.logs.with("Volume is current again"); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
			})
		})
	}
}

// What was left before a restart is as little in the way.
func TestAGenerationThatStaysOverARestart(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		var o obstacle
		o.stuck.Store(true)
		e.halt()
		e.objects.forgetPods()
		e.start()
		e.p.newWriter = func(_ *volume.Spec, opts writer.Options) treeWriter {
			return &stuckWriter{&testWriter{writer.New(opts), e.writes}, &o}
		}
		e.p.Restore(e.ctx)
		e.run()
		e.settle()
		e.wantProblem(r, "device or resource busy")
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "device or resource busy")
		e.wantEvents("VolumeUpdateFailed: prune volume v1: ")
		o.stuck.Store(false)
		after(retryMax)
		e.settle()
		e.wantProblem(r, "")
	})
}
