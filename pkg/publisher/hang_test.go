package publisher

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
)

// volumesFor publishes volumes of one pod, which show an object with the pod's name.
func (e *env) volumesFor(pod string, volumes int) []binding.Request {
	e.Helper()
	e.objects.put(configMap(pod), "a", "1")
	all := e.inOnePod(pod, volumes, "configMap", pod)
	e.publish(all...)
	return all
}

// wantWorkers fails the test unless this many pods have a worker.
func (e *env) wantWorkers(want int) {
	e.Helper()
	e.p.table.mu.Lock()
	defer e.p.table.mu.Unlock()
	if n := len(e.p.table.workers); n != want {
		e.Errorf("%d workers, want %d", n, want)
	}
}

// A write that hangs delays the volumes of its pod, and no other pod.
func TestHangingWrites(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		const pods, volumes = 40, 3
		var all []binding.Request
		for pod := range pods {
			all = append(all, e.volumesFor(fmt.Sprint("hostile-", pod), volumes)...)
		}
		release := e.writes.hangAt("this hangs")
		for pod := range pods {
			e.objects.put(configMap(fmt.Sprint("hostile-", pod)), "a", "this hangs")
		}
		for _, value := range []string{"2", "3"} {
			e.updateApp(r, "a", value)
			e.wantBetween("%d writes hang, want one of each pod", e.writes.howManyHang(), pods, pods)
			after(30 * time.Second)
		}
		release()
		after(retryMax + time.Second)
		e.wantFilesOf(all, "a", "this hangs")
		e.wantWorkers(pods + 1)
	})
}

// A write ends after reconcileTimeout, when the hanging call ends, and its volume reports why. The volume is retried as after any failure.
func TestAHangWithoutEnd(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.volumesFor("hostile", 1)[0]
		release := e.writes.hangAt("this hangs")
		e.objects.put(configMap("hostile"), "a", "this hangs")
		after(time.Hour)
		release()
		after(2 * retryMin)
		e.wantLines(1, errHangs.Error())
		e.wantProblem(r, "")
		e.wantFiles(r, "a", "this hangs")
	})
}

// A call that waits for a pod whose write hangs can give up, and the work continues afterwards.
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
		e.wantReason(e.p.Unpublish(short, all[1].VolumeID, all[1].Target), failure.ReasonUnavailable, "volume hostile-1: "+errPodBusy.Error()+": context deadline exceeded")
		late := all[1]
		late.VolumeID, late.Target = "late", strings.Replace(late.Target, "/settings-", "/late-", 1)
		e.makeTarget(late)
		e.wantReason(e.p.Publish(e.ctx, late), failure.ReasonUnavailable, "volume late: "+errPodBusy.Error())

		unpublished := make(chan error, 1)
		go func() { unpublished <- e.p.Unpublish(e.ctx, all[1].VolumeID, all[1].Target) }()
		e.wantWaiting(unpublished)
		release()
		e.wantDone(unpublished)
		after(retryMax)
		e.wantFiles(all[0], "a", "this hangs")
		e.unpublish(all[0])
		e.wantWorkers(0)
	})
}

// The end of Run waits for a short time for a reconcile that hangs.
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
		if took := time.Since(begin); took != stopTimeout {
			t.Errorf("the end took %s, want %s", took, stopTimeout)
		}
	})
}
