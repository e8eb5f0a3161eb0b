package publisher

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
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

// wantWorkers fails the test unless the Publisher has so many workers: each takes one of the volumes of
// so many pods whose writes hang.
func (e *env) wantWorkers(want int) {
	e.Helper()
	e.objects.put(configMap("app"), "a", "1")
	for i := range 2 * want {
		e.publish(e.request(fmt.Sprint("w", i)))
	}
	release := e.writes.hangAt("all hang")
	defer release()
	e.objects.put(configMap("app"), "a", "all hang")
	synctest.Wait()
	if n := e.writes.howManyHang(); n != want {
		e.Errorf("%d workers, want %d", n, want)
	}
}

// wantNoTurns fails the test if anything is remembered of a pod.
func (e *env) wantNoTurns() {
	e.Helper()
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if n := len(e.p.turns); n > 0 {
		e.Errorf("%d pods have turns", n)
	}
}

// Pods whose writes hang hold up no other pod, and each has few threads.
func TestHangingWrites(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		const pods, volumes = 3, 20
		var all []Request
		for pod := range pods {
			all = append(all, e.volumesFor(fmt.Sprint("hostile-", pod), volumes)...)
		}
		release := e.writes.hangAt("this hangs")
		for pod := range pods {
			e.objects.put(configMap(fmt.Sprint("hostile-", pod)), "a", "this hangs")
		}
		synctest.Wait()
		e.objects.put(configMap("app"), "a", "2")
		after((pods + 1) * hangTime)
		e.settle()
		e.wantFiles(r, "a", "2")
		if n := e.writes.howManyHang(); n != pods*podReconciles {
			t.Errorf("%d writes hang, want %d of each pod", n, podReconciles)
		}
		after(time.Minute)
		e.objects.put(configMap("app"), "a", "3")
		e.settle()
		e.wantFiles(r, "a", "3")

		release()
		after(2 * firstRest)
		e.settle()
		for _, r := range all {
			e.wantFiles(r, "a", "this hangs")
		}
		e.wantNoTurns()
		e.wantWorkers(defaultWorkers())
	})
}

// A pod rests four times as long as it hung, at first for ten seconds at most.
func TestRestAfterAHang(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.volumesFor("hostile", 1)[0]
		for _, test := range []struct{ hung, rest time.Duration }{
			{2 * time.Second, 8 * time.Second},
			{50 * time.Second, 2 * firstRest},
			{50 * time.Second, 4 * firstRest},
			{50 * time.Second, 8 * firstRest},
			{time.Second, 4 * time.Second},
			{50 * time.Second, 200 * time.Second},
		} {
			content := fmt.Sprint("hangs for ", test)
			release := e.writes.hangAt(content)
			e.objects.put(configMap("hostile"), "a", content)
			after(hangTime + test.hung)
			release()
			e.settle()
			e.objects.put(configMap("hostile"), "a", "after the rest")
			after(test.rest - time.Second)
			e.wantFiles(r, "a", content)
			after(time.Second)
			e.settle()
			e.wantFiles(r, "a", "after the rest")
		}
		after(200 * time.Second)
		e.wantNoTurns()
	})
}

// A short hang does not shorten the rest after a long one.
func TestAShortHangAfterALongOne(t *testing.T) {
	inStoppedBubble(t, nil, func(e *env) {
		e.p.mu.Lock()
		defer e.p.mu.Unlock()
		e.p.turns["pod"] = &turns{}
		e.p.rest("pod", time.Minute)
		long := *e.p.turns["pod"]
		e.p.rest("pod", time.Second)
		if short := e.p.turns["pod"]; short.until != long.until || short.forgotten != long.forgotten {
			t.Errorf("it rests until %s, want %s", short.until, long.until)
		}
	})
}

// What ends within hangTime is no hang, and its pod does not rest.
func TestASlowWriteIsNoHang(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.volumesFor("slow", 1)[0]
		release := e.writes.hangAt("this is slow")
		e.objects.put(configMap("slow"), "a", "this is slow")
		after(hangTime - time.Millisecond)
		release()
		e.objects.put(configMap("slow"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantWorkers(defaultWorkers())
	})
}

// A reconcile ends after reconcileTime, at the end of the call that hangs then, and its volume tells why. The
// longest rest is maxRest.
func TestAHangWithoutEnd(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.volumesFor("hostile", 1)[0]
		rest := firstRest
		for range 8 {
			release := e.writes.hangAt("this hangs")
			e.objects.put(configMap("hostile"), "a", "this hangs")
			after(time.Hour)
			release()
			e.settle()
			e.wantFiles(r, "a", "1")
			e.wantProblem(r, errHangs.Error())
			e.objects.put(configMap("hostile"), "a", "1")
			after(rest - time.Second)
			e.wantProblem(r, errHangs.Error())
			after(time.Second)
			e.settle()
			e.wantProblem(r, "")
			rest = min(2*rest, maxRest)
		}
		e.objects.put(configMap("hostile"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}

// Volumes that wait for a turn get it, also where the one that was called is unpublished before it has its.
func TestTurnOfAnUnpublishedVolume(t *testing.T) {
	inStoppedBubble(t, nil, func(e *env) {
		all := e.volumesFor("pod", podReconciles+3)
		for i, r := range all {
			if took := e.p.takeTurn(e.p.lookup(r.VolumeID)); took != (i < podReconciles) {
				t.Fatalf("volume %d took its turn: %t", i, took)
			}
		}
		for range podReconciles {
			e.p.mu.Lock()
			e.p.endTurn(all[0].Pod.UID, 0)
			e.p.mu.Unlock()
		}
		e.wantQueued(podReconciles)
		called, _ := e.p.queue.Get()
		e.p.queue.Done(called)
		for _, r := range all {
			if r.VolumeID == called {
				e.unpublish(r)
			}
		}
		e.wantQueued(podReconciles) // with the last that waited
		e.wantNoTurns()
		for _, r := range all {
			if v := e.p.lookup(r.VolumeID); v != nil {
				e.unpublish(r)
				if e.p.takeTurn(v) {
					t.Error("an unpublished volume took its turn")
				}
			}
		}
		e.wantNoTurns()
	})
}

// wantQueued fails the test unless so many volumes are queued.
func (e *env) wantQueued(want int) {
	e.Helper()
	if n := e.p.queue.Len(); n != want {
		e.Errorf("%d volumes are queued, want %d", n, want)
	}
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
