package publisher

import (
	"context"
	"runtime"
	"testing"
	"time"
)

// gate blocks a method until it is opened.
type gate struct{ entered, opened chan struct{} }

// gateAt lets the next calls of a method of the mounts wait until the gate opens.
func (e *env) gateAt(method string) *gate {
	g := &gate{entered: make(chan struct{}, 100), opened: make(chan struct{})}
	e.mounts.on(method, func() error {
		g.entered <- struct{}{}
		<-g.opened
		return nil
	})
	return g
}

func TestUnpublishCancelsAWaitingPublish(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		publish := e.publishing(r)
		e.wantWaiting(publish)
		begin := time.Now()
		e.unpublish(r)
		e.wantReason(<-publish, ReasonBusy, "volume v1: the volume was unpublished meanwhile")
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %v", took)
		}
		e.wantNothing()
	})
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
				e.wantReason(<-publish, ReasonBusy, "")
				if err := <-unpublish; err != nil {
					t.Error(err)
				}
				e.wantNothing()
			})
		})
	}
}

func TestASecondCallIsRefused(t *testing.T) {
	const busy = "volume v1: another call on this volume runs"
	inBubble(t, func(e *env) {
		r := e.request("v1")
		waiting := e.publishing(r)
		e.wantWaiting(waiting)
		e.wantReason(e.p.Publish(e.ctx, r), ReasonBusy, busy)
		e.objects.put(configMap("app"), "a", "1")
		if err := <-waiting; err != nil {
			t.Fatalf("the first call suffered: %v", err)
		}

		gate := e.gateAt("Unmount")
		unpublish := make(chan error, 1)
		go func() { unpublish <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
		<-gate.entered
		e.wantReason(e.p.Publish(e.ctx, r), ReasonBusy, busy)
		second := make(chan error, 1)
		go func() { second <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
		e.wantWaiting(second)
		other := e.request("v2")
		e.publish(other) // another volume is not concerned
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

func TestUnpublishGivesUpWithItsCaller(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		gate := e.gateAt("Create")
		publish := e.publishing(r)
		<-gate.entered
		ctx, cancel := context.WithTimeout(e.ctx, time.Second)
		defer cancel()
		e.wantReason(e.p.Unpublish(ctx, r.VolumeID, r.Target), ReasonUnavailable, "volume v1: "+errPodBusy.Error()+": context deadline exceeded")
		close(gate.opened)
		e.wantReason(<-publish, ReasonBusy, "")
		e.unpublish(r)
		e.wantNothing()
	})
}

// TestACallWaitsForAReconcile is not in a bubble: who waits there for a mutex is not
// known to wait.
func TestACallWaitsForAReconcile(t *testing.T) {
	for _, test := range []struct {
		name string
		call func(e *env, r Request) error
	}{
		{"unpublish", func(e *env, r Request) error { return e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }},
		{"publish of a volume whose mount is gone", func(e *env, r Request) error {
			e.mounts.on("Reopen", nil)
			e.mounts.vanish(r.Target)
			return e.p.Publish(e.ctx, r)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t, nil)
			e.run()
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			e.publish(r)
			// A write takes its time.
			writing, written := make(chan struct{}, 2), make(chan struct{})
			e.writes.set(func() error { writing <- struct{}{}; <-written; return nil }, nil)
			e.objects.put(configMap("app"), "a", "2")
			<-writing
			result := make(chan error, 1)
			go func() { result <- test.call(e, r) }()
			for !e.calling(r.VolumeID) {
				runtime.Gosched()
			}
			for range 1000 { // a call that did not wait would be through by then
				runtime.Gosched()
			}
			select {
			case err := <-result:
				t.Errorf("the call did not wait: %v", err)
			default:
			}
			if e.mounts.count("Unmount") > 0 || e.mounts.count("Create") > 1 {
				t.Error("the call went on while files were written")
			}
			close(written)
			if err := <-result; err != nil {
				t.Error(err)
			}
		})
	}
}

// calling says whether a call on the volume is under way.
func (e *env) calling(volumeID string) bool {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	v := e.p.volumes[volumeID]
	return v != nil && (v.gone || v.waits)
}

// A publish that waits for an object holds up no other volume of its pod.
func TestAWaitingPublishHoldsUpNobody(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(configMap("other"), "b", "1")
		r, other := e.request("v1"), e.request("v2", "configMap", "other")
		e.publish(r)
		e.publish(other)
		e.objects.remove(configMap("app"))
		e.mounts.vanish(r.Target)
		result := e.publishing(r)
		e.wantWaiting(result)
		e.objects.put(configMap("other"), "b", "2")
		e.settle()
		e.wantFiles(other, "b", "2")
		e.objects.put(configMap("app"), "a", "2")
		if err := <-result; err != nil {
			t.Error(err)
		}
		e.wantFiles(r, "a", "2")
	})
}
