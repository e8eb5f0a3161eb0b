package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/payload"
)

// reconcileNext takes one volume off the queue; it returns false once the queue
// has shut down. A failure is tried again, later each time.
func (p *Publisher) reconcileNext(ctx context.Context) bool {
	volumeID, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(volumeID)
	v := p.lookupLive(volumeID)
	if v == nil || ctx.Err() != nil {
		p.queue.Forget(volumeID)
		return true
	}
	err := p.reconcile(ctx, v)
	p.report(ctx, v, err)
	if worthRetry(err) {
		p.queue.AddRateLimited(volumeID)
	} else {
		p.queue.Forget(volumeID)
	}
	return true
}

// reconcile brings a live volume's files to the newest known state of its objects.
// The order of volumes and of events does not matter: it always takes the latest
// state, and doing it twice is doing it once.
func (p *Publisher) reconcile(ctx context.Context, v *published) error {
	v.contents.mu.Lock()
	defer v.contents.mu.Unlock()
	if v.contents.gone {
		return nil
	}
	objects, at, err := p.snapshot(v)
	if err != nil {
		return err
	}
	if v.contents.current(at) {
		return nil
	}
	if ref, older := v.contents.older(at); older {
		return fmt.Errorf("%w: the API server's answer for %s is older than what the files show", errStale, ref)
	}
	tree, err := v.render(objects)
	if err != nil {
		return err
	}
	mnt, err := p.opts.Mounts.Reopen(ctx, v.request.VolumeID, v.request.Target)
	if errors.Is(err, mount.ErrNotMounted) {
		p.dropLocked(ctx, v)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open volume %s at %s: %w", v.request.VolumeID, v.request.Target, err)
	}
	return errors.Join(p.write(ctx, v, mnt, tree, at), mnt.Close())
}

// errStale is why a reconcile waits for a newer answer.
var errStale = errors.New("stale answer")

// worthRetry says whether a failed reconcile can succeed without a change of an
// object, which would come with an event.
func worthRetry(err error) bool {
	var missing *payload.MissingError
	switch {
	case err == nil,
		errors.As(err, &missing),
		errors.Is(err, manager.ErrNotSynced),
		errors.Is(err, manager.ErrNotRegistered),
		errors.Is(err, errStale),
		ReasonOf(err) == ReasonTooLarge:
		return false
	}
	return true
}

// report keeps a volume's condition, and logs it when it changes. That the state of
// an object is not known yet says nothing about the files.
func (p *Publisher) report(ctx context.Context, v *published, err error) {
	if errors.Is(err, manager.ErrNotSynced) || errors.Is(err, manager.ErrNotRegistered) {
		return
	}
	if !v.condition.set(err) {
		return
	}
	logger := klog.FromContext(ctx).WithValues("volumeID", v.request.VolumeID, "pod", klog.KRef(v.request.Pod.Namespace, v.request.Pod.Name))
	if err != nil {
		logger.Error(err, "Volume keeps the last good files")
	} else {
		logger.Info("Volume is current again")
	}
}

// resync queues every live volume once per interval, each at a random moment of
// it, until ctx ends. It keeps the objects of live volumes from going idle, and
// mends what an event could not.
func (p *Publisher) resync(ctx context.Context) {
	ticker := time.NewTicker(p.opts.ResyncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, volumeID := range p.liveVolumes() {
			p.queue.AddAfter(volumeID, rand.N(p.opts.ResyncInterval)) //nolint:gosec // a jitter needs no secrecy
		}
	}
}

func (p *Publisher) liveVolumes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]string, 0, len(p.volumes))
	for id, v := range p.volumes {
		if v.live {
			ids = append(ids, id)
		}
	}
	return ids
}
