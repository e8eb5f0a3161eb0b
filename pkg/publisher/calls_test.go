package publisher

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/mount"
)

// gate blocks a method until it is opened.
type gate struct{ entered, opened chan struct{} }

// gateAt blocks the next calls of a method of the mounts until the gate opens.
func (e *env) gateAt(method string) *gate {
	g := &gate{entered: make(chan struct{}, 100), opened: make(chan struct{})}
	e.mounts.on(method, func() error {
		g.entered <- struct{}{}
		<-g.opened
		return nil
	})
	return g
}

// The publish waits for an object or for its pod.
func TestUnpublishCancelsAWaitingPublish(t *testing.T) {
	for _, sources := range []string{"[{configMap: {name: app}}]", podEnvSources} {
		inBubble(t, func(e *env) {
			e.pods.setSlow(endless)
			r := e.request("v1", "sources", sources)
			publish := e.waiting(r)
			begin := time.Now()
			e.unpublish(r)
			e.wantReason(<-publish, failure.ReasonBusy, "volume v1: the volume was unpublished meanwhile")
			if took := time.Since(begin); took != 0 {
				t.Errorf("took %v", took)
			}
			e.wantNothing()
		})
	}
}

func TestUnpublishEndsAPublishThatWrites(t *testing.T) {
	for _, method := range []string{"Create", "Attach"} {
		inBubbleOf(t, method, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			gate := e.gateAt(method)
			publish := e.publishing(r)
			<-gate.entered
			unpublish := make(chan error, 1)
			go func() { unpublish <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
			e.wantWaiting(unpublish)
			close(gate.opened)
			e.wantReason(<-publish, failure.ReasonBusy, "")
			e.wantDone(unpublish)
			e.wantNothing()
		})
	}
}

func TestASecondCallIsRefused(t *testing.T) {
	const busy = "volume v1: another call for this volume is running"
	inBubble(t, func(e *env) {
		r := e.request("v1")
		waiting := e.waiting(r)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonBusy, busy)
		e.objects.put(configMap("app"), "a", "1")
		if err := <-waiting; err != nil {
			t.Fatalf("the first call suffered: %v", err)
		}

		gate := e.gateAt("Unmount")
		unpublish := make(chan error, 1)
		go func() { unpublish <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
		<-gate.entered
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonBusy, busy)
		second := make(chan error, 1)
		go func() { second <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
		e.wantWaiting(second)
		other := e.publishNew("v2") // another volume is not affected
		close(gate.opened)
		e.wantDone(unpublish, second)
		e.wantBetween("%d unmounts", e.mounts.count("Unmount"), 1, 1)
		e.end(other)
	})
}

func TestUnpublishOfTheUnknownSucceeds(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		e.unpublish(r)
		e.objects.put(configMap("app"), "a", "1")
		e.publish(r)
		e.end(r, r)
	})
}

// It is not known what was requested, but the mount is unmounted anyway.
func TestUnpublishNeedsNoState(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.objects.failWith(configMap("app"), errors.New("no API server"))
		e.restartUnread()
		e.end(r)
	})
}

func TestUnpublishOfAnotherTargetKeepsTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.settle() // the mounts have been listed: nothing that was forgotten is taken over again
		other := r
		other.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.unpublish(other)
		e.updateApp(r, "a", "2")
		e.end(r)
	})
}

// A target that leads out of the kubelet's directory is refused each time. Once it doesn't, the next unpublish succeeds.
func TestUnpublishOfATargetThatLeadsElsewhere(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.mounts.failAt("Unmount", fmt.Errorf("%s: %w", r.Target, mount.ErrOutside))
		for range 2 {
			e.wantReason(e.p.Unpublish(e.ctx, r.VolumeID, r.Target), failure.ReasonInvalid, "target_path: "+r.Target+": "+mount.ErrOutside.Error())
		}
		e.mounts.failAt("Unmount", nil)
		e.end(r)
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
		e.wantLines(0, "Unpublished volume")
		e.end(r)
		e.wantLines(1, "Unpublished volume")
	})
}
