package publisher

import (
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/failure"
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
			e.pods.setHang(true)
			r := e.request("v1", "sources", sources)
			publish := e.publishing(r)
			e.wantWaiting(publish)
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
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(e *env) {
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
				if err := <-unpublish; err != nil {
					t.Error(err)
				}
				e.wantNothing()
			})
		})
	}
}

func TestASecondCallIsRefused(t *testing.T) {
	const busy = "volume v1: another call for this volume is running"
	inBubble(t, func(e *env) {
		r := e.request("v1")
		waiting := e.publishing(r)
		e.wantWaiting(waiting)
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
		other := e.request("v2")
		e.publish(other) // another volume is not affected
		close(gate.opened)
		for _, result := range []chan error{unpublish, second} {
			if err := <-result; err != nil {
				t.Fatal(err)
			}
		}
		if n := e.mounts.count("Unmount"); n != 1 {
			t.Errorf("%d unmounts", n)
		}
		e.unpublish(other)
		e.wantNothing()
	})
}
