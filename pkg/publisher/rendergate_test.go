package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

func TestRenderGateIsFourBudgets(t *testing.T) {
	if total := largeRenders*payload.MaxHeap + smallRenders*smallHeap; total != 4*payload.MaxHeap {
		t.Errorf("%d bytes, want four times %d", total, payload.MaxHeap)
	}
}

// Places are given in order, and whoever stops waiting loses none.
func TestRenderGateKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lane{free: 1}
		if err := l.acquire(t.Context(), "p", nil); err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 10)
		wait := func(name string, ctx context.Context, stopping chan struct{}) {
			go func() {
				if err := l.acquire(ctx, "p", stopping); err != nil {
					order <- fmt.Sprint(name, ": ", err)
					return
				}
				order <- name
				l.release()
			}()
			synctest.Wait()
		}
		cancelled, cancel := context.WithCancel(t.Context())
		stopping := make(chan struct{})
		wait("first", t.Context(), nil)
		wait("cancelled", cancelled, nil)
		wait("stopped", t.Context(), stopping)
		wait("last", t.Context(), nil)
		cancel()
		synctest.Wait()
		close(stopping)
		synctest.Wait()
		if l.tryAcquire() {
			t.Error("a place was given twice")
		}
		l.release()
		synctest.Wait()
		close(order)
		var got []string
		for name := range order {
			got = append(got, name)
		}
		want := []string{"cancelled: context canceled", "stopped: the plugin is stopping", "first", "last"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if !l.tryAcquire() || l.tryAcquire() {
			t.Error("the place is lost, or there are two")
		}
	})
}

// Pods take turns: one with many volumes that wait holds up no other one.
func TestRenderGateIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lane{free: 1}
		if err := l.acquire(t.Context(), "many", nil); err != nil {
			t.Fatal(err)
		}
		order := make(chan types.UID, 10)
		for _, pod := range []types.UID{"many", "many", "many", "many", "few", "few", "one"} {
			go func() {
				if err := l.acquire(t.Context(), pod, nil); err != nil {
					t.Error(err)
				}
				order <- pod
				l.release()
			}()
			synctest.Wait()
		}
		l.release()
		synctest.Wait()
		close(order)
		var got []types.UID
		for pod := range order {
			got = append(got, pod)
		}
		if want := []types.UID{"many", "few", "one", "many", "few", "many", "many"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if l.free != 1 || len(l.turns)+len(l.waiting) > 0 {
			t.Errorf("%d places are free, and %q wait", l.free, l.turns)
		}
	})
}

// large returns a request for a volume whose render is a large one.
func (e *env) large(id string) Request {
	e.objects.put(configMap("large"), "A", strings.Repeat("x", 400<<10))
	return e.request(id, "sources", "[{env: {path: e, envFrom: [{configMapRef: {name: large}}]}}]")
}

// fill has all places for large renders taken, until the returned function is called.
func (e *env) fill() (free func()) {
	for range largeRenders {
		if !e.p.renders.large.tryAcquire() {
			e.Fatal("no place is free")
		}
	}
	return func() {
		for range largeRenders {
			e.p.renders.large.release()
		}
	}
}

// wantFree fails the test unless all places are free again.
func (e *env) wantFree() {
	e.Helper()
	g := e.p.renders
	if g.small.free != smallRenders || g.large.free != largeRenders || len(g.large.turns)+len(g.large.waiting) > 0 {
		e.Errorf("%d small and %d large places are free, %d wait", g.small.free, g.large.free, len(g.large.waiting))
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
		e.wantReason(<-unpublished, ReasonBusy, "volume v2: "+errUnpublished.Error()+": "+errCrowded.Error()+": context canceled")

		free()
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		e.wantFree()

		free = e.fill()
		e.wantReason(e.p.Publish(e.ctx, second), ReasonUnavailable, errCrowded.Error()+": context deadline exceeded")
		stopped := e.publishing(second)
		e.wantWaiting(stopped)
		e.p.StopWaiting()
		e.wantReason(<-stopped, ReasonUnavailable, errCrowded.Error()+": "+errStopping.Error())
		free()
		e.wantFree()
		e.unpublish(first)
		e.unpublish(small)
	})
}

// A live volume that waits for its place holds neither a worker nor its lock.
func TestLargeUpdatesWaitTheirTurn(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.Workers = 1 }, func(e *env) {
		e.run()
		first, second := e.large("v1"), e.large("v2")
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
		e.unpublish(second) // while it waits
		free()
		e.settle()
		e.wantFiles(first, "e", "A="+strings.Repeat("y", 400<<10)+"\n")
		e.wantFree()
		e.unpublish(first)
		e.unpublish(small)
		e.wantNothing()
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

// A large publish that waits for the review of its pod's rights has no place, so another large
// one does not wait for the review: neither for one that fails, nor for one whose answer is too
// old by its own beginning when it comes.
func TestAReviewHoldsNoPlace(t *testing.T) {
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
				for i := range largeRenders {
					r := e.request(fmt.Sprint("v", i), "sources", "[{env: {path: e, envFrom: [{configMapRef: {name: large}}]}}, {secret: {name: db, namespace: platform}}, {configMap: {name: late}}]")
					waiting = append(waiting, e.publishing(r))
				}
				for _, result := range waiting {
					e.wantWaiting(result)
				}
				after(10 * time.Second)
				access.set(func() { access.err, access.delay = review.err, review.delay })
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

// What a pod's spec adds to a volume is worked out at a place, as it may be much.
func TestResolvingNeedsAPlace(t *testing.T) {
	inIdentities(t, func(e *env) {
		e.pods.setSlow(time.Second)
		e.pods.spoil(errors.New("no such thing")) // it is refused before it is rendered
		answer := e.publishing(e.volumesOf("v", 1)[0])
		e.wantWaiting(answer) // for its pod, after it was parsed
		for range smallRenders {
			if !e.p.renders.small.tryAcquire() {
				e.Fatal("no place is free")
			}
		}
		after(2 * time.Second)
		e.wantWaiting(answer)
		for range smallRenders {
			e.p.renders.small.release()
		}
		e.wantReason(<-answer, ReasonInvalid, "volume: no such thing")
	})
}
