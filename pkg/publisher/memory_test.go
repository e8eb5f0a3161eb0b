package publisher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/failure"
)

// fill takes all places for renders until the returned function is called.
func (e *env) fill() (free func()) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, time.Millisecond)
	defer cancel()
	end := make(chan struct{})
	taken := make(chan bool, atOnce)
	for range atOnce {
		go func() {
			if e.p.bindings.InTurn(ctx, func() { taken <- true; <-end }) != nil {
				taken <- false
			}
		}()
	}
	for range atOnce {
		if !<-taken {
			e.Fatal("places are taken")
		}
	}
	return func() { close(end); synctest.Wait() }
}

// wantFree fails the test unless all places are free again.
func (e *env) wantFree() {
	e.Helper()
	synctest.Wait()
	e.fill()()
}

// While there is no place to render, a publish waits. The wait ends with an unpublish, at its deadline, or when the plugin stops.
func TestPublishesWaitTheirTurn(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		free := e.fill()
		first, second := e.request("v1"), e.request("v2")
		waiting, unpublished := e.publishing(first), e.publishing(second)
		e.wantWaiting(waiting)
		e.wantWaiting(unpublished)
		e.unpublish(second)
		e.wantReason(<-unpublished, failure.ReasonBusy, "volume v2: "+errUnpublished.Error())
		free()
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		e.wantFree()

		free = e.fill()
		e.wantReason(e.p.Publish(e.ctx, second), failure.ReasonUnavailable, failure.ErrCrowded.Error())
		stopped := e.publishing(second)
		e.wantWaiting(stopped)
		e.p.StopWaiting()
		e.wantReason(<-stopped, failure.ReasonUnavailable, "volume v2: "+errStopping.Error())
		free()
		e.wantFree()
		e.unpublish(first)
	})
}
