package opened

import (
	"context"
	"errors"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/writer"
)

// Watcher watches which files other processes open. *receipts.Group implements it. See its methods.
type Watcher interface {
	Watch(dir int, owner string, opened func(ids []string), lost func(err error)) (stop func(), err error)
	Unmark(dir int) error
	ID(dir int, path string) (string, error)
	Drain(within time.Duration) error
	Ignore(file int) (receipts.Position, error)
	HasReported(before receipts.Position) bool
	Listen(file int) error
}

// watch starts to watch the file system of a generation, unless it is watched already or must not be yet. The files are known.
func (r *Receipts) watch(ctx context.Context, g *writer.Generation) {
	if r.stop != nil || errors.Is(r.unwatched, receipts.ErrNoisy) && time.Now().Before(r.noUntil) {
		return
	}
	stop, err := r.opens.Watch(g.Fd(), r.owner, r.inbox.opened, r.inbox.lost)
	if err != nil {
		r.refuse(ctx, err)
		r.retry()
		return
	}
	r.stop, r.unwatched = stop, nil
}

// refuse notes why there is no watch. Each reason is logged once.
func (r *Receipts) refuse(ctx context.Context, err error) {
	if r.unwatched == nil || r.unwatched.Error() != err.Error() {
		klog.FromContext(ctx).Info("Opens of a volume's files are not watched", "reason", err.Error())
	}
	r.unwatched = err
	r.miss()
}

// retry schedules a retry, with delays that grow until receipts have worked for a long time.
func (r *Receipts) retry() {
	now := time.Now()
	if now.Sub(r.endedAt) > 2*rewatchMax {
		r.ended = 0
	}
	r.retryAt = now.Add(min(rewatchMin<<min(r.ended, 10), rewatchMax))
	r.ended, r.endedAt = r.ended+1, now
}

// endWatch handles the end of a watch that the Watcher reported. After an end because of noise, no watch is started for a while.
func (r *Receipts) endWatch(ctx context.Context, root *os.Root, why error) {
	r.refuse(ctx, why)
	r.retry()
	if !errors.Is(why, receipts.ErrNoisy) {
		r.stop = nil
		return
	}
	r.noUntil, r.retryAt = r.retryAt, time.Time{}
	g, err := writer.OpenGeneration(root, r.writes, "")
	if err != nil {
		r.stop = nil
		klog.FromContext(ctx).Error(err, "Can't end the watch of a volume's files")
		return
	}
	defer g.Close()
	r.unmark(ctx, g)
}

// unmark ends the watch of a generation's file system, if there is one.
func (r *Receipts) unmark(ctx context.Context, g *writer.Generation) {
	if r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	if err := r.opens.Unmark(g.Fd()); err != nil {
		klog.FromContext(ctx).Error(err, "Can't end the watch of a volume's files")
	}
}
