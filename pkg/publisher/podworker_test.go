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

	"github.com/refvol/refvol/pkg/volume"
)

// volumesFor publishes volumes of one pod, which show an object named like the pod.
func (e *env) volumesFor(pod string, volumes int) []Request {
	e.Helper()
	e.objects.put(configMap(pod), "a", "1")
	all := e.inOnePod(pod, volumes, "configMap", pod)
	for _, r := range all {
		e.publish(r)
	}
	return all
}

// wantWorkers fails the test unless so many pods have a worker, and none is due for anything but its
// volumes' resync.
func (e *env) wantWorkers(want int) {
	e.Helper()
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if n := len(e.p.workers.pods); n != want {
		e.Errorf("%d workers, want %d", n, want)
	}
	for pod, w := range e.p.workers.pods {
		if w.running {
			e.Errorf("the worker of pod %s runs", pod)
		}
	}
}

// A write that hangs holds up the volumes of its pod, and no other pod.
func TestHangingWrites(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		const pods, volumes = 40, 3
		var all []Request
		for pod := range pods {
			all = append(all, e.volumesFor(fmt.Sprint("hostile-", pod), volumes)...)
		}
		release := e.writes.hangAt("this hangs")
		for pod := range pods {
			e.objects.put(configMap(fmt.Sprint("hostile-", pod)), "a", "this hangs")
		}
		for _, value := range []string{"2", "3"} {
			e.objects.put(configMap("app"), "a", value)
			e.settle()
			e.wantFiles(r, "a", value)
			if n := e.writes.howManyHang(); n != pods {
				t.Errorf("%d writes hang, want one of each pod", n)
			}
			after(30 * time.Second)
		}
		release()
		after(retryMax + time.Second)
		for _, r := range all {
			e.wantFiles(r, "a", "this hangs")
		}
		e.wantWorkers(pods + 1)
	})
}

// A write ends after reconcileTime, at the end of the call that hangs then, and its volume tells why. The
// volume is tried again as after any failure.
func TestAHangWithoutEnd(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.volumesFor("hostile", 1)[0]
		release := e.writes.hangAt("this hangs")
		e.objects.put(configMap("hostile"), "a", "this hangs")
		after(time.Hour)
		release()
		synctest.Wait()
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, errHangs.Error())
		after(2 * retryMin)
		e.wantProblem(r, "")
		e.wantFiles(r, "a", "this hangs")
	})
}

// What waits for a pod whose write hangs can give up, and goes on after it.
func TestCallsBesideAHang(t *testing.T) {
	inBubble(t, func(e *env) {
		all := e.volumesFor("hostile", 2)
		release := e.writes.hangAt("this hangs")
		e.objects.put(configMap("hostile"), "a", "this hangs")
		synctest.Wait()
		e.publish(all[0]) // a republish waits for nothing
		e.publish(all[1])
		e.wantProblem(all[0], "")
		short, cancel := context.WithTimeout(e.ctx, time.Second)
		defer cancel()
		e.wantReason(e.p.Unpublish(short, all[1].VolumeID, all[1].Target), ReasonUnavailable, "volume hostile-1: "+errPodBusy.Error()+": context deadline exceeded")
		late := all[1]
		late.VolumeID, late.Target = "late", strings.Replace(late.Target, "/settings-", "/late-", 1)
		e.makeTarget(late)
		e.wantReason(e.p.Publish(e.ctx, late), ReasonUnavailable, errPodBusy.Error()+": context deadline exceeded")

		unpublished := make(chan error, 1)
		go func() { unpublished <- e.p.Unpublish(e.ctx, all[1].VolumeID, all[1].Target) }()
		e.wantWaiting(unpublished)
		release()
		if err := <-unpublished; err != nil {
			t.Error(err)
		}
		after(retryMax)
		e.wantFiles(all[0], "a", "this hangs")
		e.unpublish(all[0])
		e.wantWorkers(0)
	})
}

// The end waits a little for a reconcile that hangs.
func TestTheEndBesideAHang(t *testing.T) {
	inBubble(t, func(e *env) {
		e.volumesFor("hostile", 3)
		release := e.writes.hangAt("this hangs")
		e.objects.put(configMap("hostile"), "a", "this hangs")
		after(10 * time.Second)
		begin := time.Now()
		e.halt()
		defer synctest.Wait()
		defer release()
		if took := time.Since(begin); took != endTime {
			t.Errorf("the end took %s, want %s", took, endTime)
		}
	})
}

// The volume that is due first comes first, an earlier moment counts, and a worker ends when none is due.
func TestOrderOfAPodsVolumes(t *testing.T) {
	inStoppedBubble(t, nil, func(e *env) {
		w := e.p.holdWorker(types.UID("pod"))
		defer e.p.releaseWorker(w)
		volumes := make([]*published, 3)
		now := time.Now()
		for i, due := range []time.Duration{2 * time.Second, 3 * time.Second, time.Second} {
			volumes[i] = &published{p: e.p, worker: w, state: live, spec: &volume.Spec{}}
			e.p.requeue(volumes[i], now.Add(due))
		}
		e.p.requeue(volumes[1], now)
		e.p.requeue(volumes[1], now.Add(time.Hour))
		e.p.requeue(&published{p: e.p, worker: w, state: publishing}, now) // it is not live
		after(2 * time.Second)
		var got []*published
		for v := e.p.nextDue(e.ctx, w); v != nil; v = e.p.nextDue(e.ctx, w) {
			got = append(got, v)
		}
		if want := []*published{volumes[1], volumes[2], volumes[0]}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// The lock of a pod goes to who waits longest, and who gives up loses nothing.
func TestPodLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := make(podLock, 1)
		if err := l.lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 3)
		cause := errors.New("it has ended")
		ended, end := context.WithCancelCause(t.Context())
		for _, test := range []struct {
			name string
			ctx  context.Context
		}{{"first", t.Context()}, {"ended", ended}, {"second", t.Context()}} {
			go func() {
				if err := l.lock(test.ctx); err != nil {
					order <- fmt.Sprint(test.name, ": ", err)
					return
				}
				order <- test.name
				l.unlock()
			}()
			synctest.Wait()
		}
		end(cause)
		synctest.Wait()
		l.unlock()
		synctest.Wait()
		if got := []string{<-order, <-order, <-order}; !slices.Equal(got, []string{"ended: it has ended", "first", "second"}) {
			t.Errorf("got %q", got)
		}
	})
}
