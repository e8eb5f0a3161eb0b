package publisher

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// large returns a request for a volume whose render is a large one.
func (e *env) large(id string) Request {
	e.objects.put(configMap("large"), "A", strings.Repeat("x", 400<<10))
	return e.request(id, "sources", "[{env: {path: e, envFrom: [{configMapRef: {name: large}}]}}]")
}

// fill has all memory for large renders taken, until the returned function is called.
func (e *env) fill() (free func()) {
	e.Helper()
	if !e.p.renders.large.TryAcquire(atOnce) {
		e.Fatal("memory is taken")
	}
	return func() { e.p.renders.large.Release(atOnce) }
}

// wantFree fails the test unless all memory is free again.
func (e *env) wantFree() {
	e.Helper()
	synctest.Wait()
	for name, all := range map[string]struct {
		of   *semaphore.Weighted
		size int64
	}{"small": {e.p.renders.small, atOnce}, "large": {e.p.renders.large, atOnce}} {
		if !all.of.TryAcquire(all.size) {
			e.Errorf("memory of %s renders is taken", name)
			continue
		}
		all.of.Release(all.size)
	}
}

// While large renders take all their places, a large publish waits, and a small one does not. An
// unpublish, the end of its time or that of the plugin ends the wait.
func TestLargePublishesWaitTheirTurn(t *testing.T) {
	inBubble(t, func(e *env) {
		free := e.fill()
		first, second := e.large("v1"), e.large("v2")
		waiting, unpublished := e.publishing(first), e.publishing(second)
		e.wantWaiting(waiting)
		e.wantWaiting(unpublished)

		e.objects.put(configMap("app"), "a", "1")
		small := e.request("v3")
		start := time.Now()
		e.publish(small)
		if took := time.Since(start); took > 0 {
			t.Errorf("a small publish took %v", took)
		}
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
		e.unpublish(small)
	})
}

// Small updates wait for no large one, and an update goes on once there is memory.
func TestLargeUpdatesWaitTheirTurn(t *testing.T) {
	inBubble(t, func(e *env) {
		first, second := e.large("v1"), e.large("v2") // of two pods
		e.publish(first)
		e.publish(second)
		e.objects.put(configMap("app"), "a", "1")
		small := e.request("v3")
		e.publish(small)

		free := e.fill()
		e.objects.put(configMap("large"), "A", strings.Repeat("y", 400<<10))
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(small, "a", "2")
		e.wantFiles(first, "e", "A="+strings.Repeat("x", 400<<10)+"\n")
		e.wantProblem(first, "")
		free()
		e.settle()
		e.wantFiles(first, "e", "A="+strings.Repeat("y", 400<<10)+"\n")
		e.wantFiles(second, "e", "A="+strings.Repeat("y", 400<<10)+"\n")
		e.wantFree()
		e.unpublish(first)
		e.unpublish(second)
		e.unpublish(small)
		e.wantNothing()
	})
}

// A write that hangs keeps no memory from the renders of others.
func TestAHangHoldsNoMemory(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.large("v1")
		e.publish(r)
		value := strings.Repeat("y", 400<<10)
		release := e.writes.hangAt("A=" + value + "\n")
		e.objects.put(configMap("large"), "A", value)
		synctest.Wait()
		if n := e.writes.howManyHang(); n != 1 {
			t.Errorf("%d writes hang", n)
		}
		e.wantFree()
		release()
		e.settle()
		e.wantFiles(r, "e", "A="+value+"\n")
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
		sources := "[" + strings.Repeat("{configMap: {name: big}},", volume.MaxSources) + "]"
		err := e.p.Publish(e.ctx, e.request("v1", "sources", sources))
		e.wantReason(err, ReasonTooLarge, "sources[87].configMap: Too many: 768000: the keys, items and env files of a volume's sources must be at most 262144 together, each counted as often as it is named")
		var tooLarge *payload.TooLargeError
		if !errors.As(err, &tooLarge) {
			t.Errorf("got a %T", err)
		}
		e.wantFree()
		e.wantNothing()
	})
}

// A large publish that waits for the review of its pod's rights has no memory, so another large
// one does not wait for the review: neither for one that fails, nor for one whose answer is too
// old by its own beginning when it comes.
func TestAReviewHoldsNoMemory(t *testing.T) {
	for name, review := range map[string]struct {
		err   error
		delay time.Duration
	}{
		"fails":   {err: errReview},
		"is slow": {delay: consentAge + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			acrossInBubble(t, func(e *env, access *fakeAccess, _ Request) {
				large := e.large("own")
				var waiting []<-chan error
				for i := range 3 {
					r := e.request(fmt.Sprint("v", i), "sources", "[{env: {path: e, envFrom: [{configMapRef: {name: large}}]}}, {secret: {name: db, namespace: platform}}, {configMap: {name: late}}]")
					waiting = append(waiting, e.publishing(r))
				}
				for _, result := range waiting {
					e.wantWaiting(result)
				}
				access.set(func() { access.err, access.delay = review.err, review.delay })
				after(testResync / 2) // the answers are too old for a new volume
				e.objects.put(configMap("late"), "late", "1")
				for _, result := range waiting {
					e.wantWaiting(result)
				}
				start := time.Now()
				e.publish(large)
				if took := time.Since(start); took > 0 {
					t.Errorf("another large publish took %v", took)
				}
				access.failWith(nil)
				for _, result := range waiting {
					if err := <-result; err != nil {
						t.Error(err)
					}
				}
				e.wantFree()
			})
		})
	}
}

// What a pod's spec adds to a volume is worked out within the memory for renders, as it may be much.
func TestResolvingNeedsMemory(t *testing.T) {
	inIdentities(t, func(e *env) {
		e.pods.setSlow(time.Second)
		e.pods.spoil(errors.New("no such thing")) // it is refused before it is rendered
		answer := e.publishing(e.volumesOf("v", 1)[0])
		e.wantWaiting(answer) // for its pod, after it was parsed
		if !e.p.renders.small.TryAcquire(atOnce) {
			e.Fatal("memory is taken")
		}
		after(2 * time.Second)
		e.wantWaiting(answer)
		e.p.renders.small.Release(atOnce)
		e.wantReason(<-answer, ReasonInvalid, "volume: no such thing")
	})
}
