package publisher

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/mount"
)

func TestUnpublishOfTheUnknownSucceeds(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		e.unpublish(r)
		e.objects.put(configMap("app"), "a", "1")
		e.publish(r)
		e.unpublish(r)
		e.unpublish(r)
		e.wantNothing()
	})
}

// It is not known what was requested, but the mount is unmounted anyway.
func TestUnpublishNeedsNoState(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.failWith(configMap("app"), errors.New("no API server"))
		e.restartUnread()
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestUnpublishOfAnotherTargetKeepsTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.settle() // the mounts have been listed: nothing that was forgotten is taken over again
		other := r
		other.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.unpublish(other)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.unpublish(r)
		e.wantNothing()
	})
}

// A target that leads out of the kubelet's directory is refused each time. Once it doesn't, the next unpublish succeeds.
func TestUnpublishOfATargetThatLeadsElsewhere(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.mounts.failAt("Unmount", fmt.Errorf("%s: %w", r.Target, mount.ErrOutside))
		for range 2 {
			e.wantReason(e.p.Unpublish(e.ctx, r.VolumeID, r.Target), failure.ReasonInvalid, "target_path: "+r.Target+": "+mount.ErrOutside.Error())
		}
		e.mounts.failAt("Unmount", nil)
		e.unpublish(r)
		e.wantNothing()
	})
}

// An unpublish that fails where nothing is mounted returns when the volume is forgotten. The next call would be refused until then.
func TestAFailedUnpublishIsOverWhenItReturns(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		e.wantWaiting(e.publishing(r)) // the object is missing
		e.mounts.failAt("Unmount", errFault)
		entered, opened := make(chan struct{}), make(chan struct{})
		open := sync.OnceFunc(func() { close(opened) })
		defer open()
		e.objects.onUnregister = func() { close(entered); <-opened }
		unpublish := make(chan error, 1)
		go func() { unpublish <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
		<-entered
		e.wantWaiting(unpublish)
		open()
		e.wantReason(<-unpublish, 0, fmt.Sprintf("unmount volume v1 from %s: %v", r.Target, errFault))
		e.objects.onUnregister = func() {}
		e.mounts.failAt("Unmount", nil)
		e.objects.put(configMap("app"), "a", "1")
		r.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.makeTarget(r)
		e.publish(r)
		if lines := e.logs.With("Unpublished volume"); len(lines) > 0 {
			t.Errorf("nothing was unpublished, and the log has %q", lines)
		}
		e.unpublish(r)
		e.wantNothing()
		if lines := e.logs.With("Unpublished volume"); len(lines) != 1 {
			t.Errorf("a volume was unpublished, and the log has %q", lines)
		}
	})
}
