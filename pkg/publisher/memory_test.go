package publisher

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/payload"
)

// fill has all places of renders taken, until the returned function is called.
func (e *env) fill() (free func()) {
	e.Helper()
	if !e.p.renders.TryAcquire(atOnce) {
		e.Fatal("places are taken")
	}
	return func() { e.p.renders.Release(atOnce) }
}

// wantFree fails the test unless all places are free again.
func (e *env) wantFree() {
	e.Helper()
	synctest.Wait()
	e.fill()()
}

// While there is no place to render, a publish waits. An unpublish, the end of its time or that of the plugin ends the wait.
func TestPublishesWaitTheirTurn(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		free := e.fill()
		first, second := e.request("v1"), e.request("v2")
		waiting, unpublished := e.publishing(first), e.publishing(second)
		e.wantWaiting(waiting)
		e.wantWaiting(unpublished)
		e.unpublish(second)
		e.wantReason(<-unpublished, ReasonBusy, "volume v2: "+errUnpublished.Error())
		free()
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		e.wantFree()

		free = e.fill()
		e.wantReason(e.p.Publish(e.ctx, second), ReasonUnavailable, errCrowded.Error())
		stopped := e.publishing(second)
		e.wantWaiting(stopped)
		e.p.StopWaiting()
		e.wantReason(<-stopped, ReasonUnavailable, "volume v2: "+errStopping.Error())
		free()
		e.wantFree()
		e.unpublish(first)
	})
}

// An update goes on once there is a place, and its wait is no problem of the volume.
func TestUpdatesWaitTheirTurn(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		free := e.fill()
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		free()
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantFree()
		e.unpublish(r)
		e.wantNothing()
	})
}

// A write that hangs keeps no place from the renders of others.
func TestAHangHoldsNoPlace(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		release := e.writes.hangAt("2")
		e.objects.put(configMap("app"), "a", "2")
		synctest.Wait()
		if n := e.writes.howManyHang(); n != 1 {
			t.Errorf("%d writes hang", n)
		}
		e.wantFree()
		release()
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}

// What asks for too much is refused before it is made, with both sizes.
func TestAPublishOfTooMuch(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.putWith(configMap("big"), func(string) map[string][]byte {
			keys := map[string][]byte{}
			for i := range 3000 {
				keys[fmt.Sprint(i)] = nil
			}
			return keys
		})
		sources := "[" + strings.Repeat("{configMap: {name: big}},", 1000) + "]"
		err := e.p.Publish(e.ctx, e.request("v1", "sources", sources))
		e.wantReason(err, ReasonTooLarge, "sources[0].configMap: Too many: the volume may show 256 keys, items and env files, each counted as often as it is named: one for each page of --max-volume-size")
		var tooLarge *payload.TooLargeError
		if !errors.As(err, &tooLarge) {
			t.Errorf("got a %T", err)
		}
		e.wantFree()
		e.wantNothing()
	})
}

// What a pod's spec adds to a volume is worked out in turn, as it may be much.
func TestResolvingNeedsMemory(t *testing.T) {
	inIdentities(t, func(e *env) {
		e.pods.setSlow(time.Second)
		e.pods.spoil(errors.New("no such thing")) // it is refused before it is rendered
		answer := e.publishing(e.volumesOf("v", 1)[0])
		e.wantWaiting(answer) // for its pod, after it was parsed
		free := e.fill()
		after(2 * time.Second)
		e.wantWaiting(answer)
		free()
		e.wantReason(<-answer, ReasonInvalid, "volume: no such thing")
	})
}
