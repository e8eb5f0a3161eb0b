package publisher

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

func TestReconcile(t *testing.T) { each(t, inBubble, reconcileTests) }

var reconcileTests = map[string]func(e *env){
	"one change of condition is logged once": func(e *env) {
		r := e.publishApp()
		var tries atomic.Int64
		e.writes.set(func() error {
			return fmt.Errorf("create generation ..%d: %w", tries.Add(1), unix.ENOSPC)
		}, nil)
		e.objects.put(configMap("app"), "a", "2")
		e.wait(testResync)
		n := tries.Load()
		if n < 10 {
			e.Fatalf("%d writes only", n)
		}
		e.wantLines(1, "Volume does not show what it should")
		e.wantProblem(r, fmt.Sprintf("..%d: no space left", n)) // but the condition has the latest text
		e.writes.set(func() error { return unix.EIO }, nil)
		after(testResync)
		e.remove(configMap("app"))
		e.wantLines(3, "Volume does not show what it should")
		e.writes.set(nil, nil)
		e.objects.put(configMap("app"), "a", "3")
		after(testResync)
		e.wantLines(1, "Volume is current again")
	},
	"stats": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		_, err := e.p.Stats(e.ctx, r.VolumeID, r.Target)
		e.wantReason(err, failure.ReasonNotFound, "volume v1 is not published at "+r.Target)
		e.publish(r)
		stats, err := e.p.Stats(e.ctx, r.VolumeID, r.Target)
		if err != nil || stats.Capacity != e.p.limits.MountBytes || stats.Used != 4096 {
			e.Errorf("got %+v, %v", stats, err)
		}
		_, err = e.p.Stats(e.ctx, r.VolumeID, strings.Replace(r.Target, "/settings/", "/other/", 1))
		e.wantReason(err, failure.ReasonNotFound, "")
		e.mounts.failAt("Open", errFault)
		if _, err = e.p.Stats(e.ctx, r.VolumeID, r.Target); !errors.Is(err, errFault) || failure.ReasonOf(err) != 0 {
			e.Errorf("got %v", err)
		}
		e.mounts.failAt("Open", nil)
		e.mounts.vanish(r.Target)
		_, err = e.p.Stats(e.ctx, r.VolumeID, r.Target)
		e.wantReason(err, failure.ReasonNotFound, "volume v1 is not mounted at "+r.Target+": not mounted")
	},
	"a look that cannot read the record leaves the volume bound to its request and its objects": func(e *env) {
		r := e.publishApp()
		e.mounts.failAt("Reopen", mount.ErrNotMounted) // so it is looked at what is mounted
		e.mounts.locked(func() { e.mounts.unreadable = true })
		e.update(configMap("app"), "a", "2")
		e.wantProblem(r, "read the record of volume v1")
		if !e.objects.isRegistered(configMap("app")) {
			e.Error("the volume's object is not registered any more")
		}
		e.mounts.failAt("Reopen", nil)
		e.mounts.locked(func() { e.mounts.unreadable = false })
		e.rest()
		e.wantFiles(r, "a", "2")
	},
	"a volume that cannot be attached is unmounted again: if that fails too, the error names both": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		shown := "show volume v1 at " + r.Target + ": " + errFault.Error()
		e.mounts.failAt("Attach", errFault)
		if err := e.p.Publish(e.ctx, r); err == nil || failure.ReasonOf(err) != 0 || err.Error() != shown {
			e.Errorf("got %v, want %s", err, shown)
		}
		e.wantNothing()
		e.mounts.failAt("Unmount", errFault)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, shown+"; undo: "+errFault.Error())
		e.mounts.failAt("Attach", nil)
		e.mounts.failAt("Attached", errFault) // it is mounted
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, shown+"; undo: "+errFault.Error())
		e.settle()
		if v := e.lookup(r.VolumeID); v == nil {
			e.Error("the volume is forgotten although it is mounted")
		}
		e.mounts.failAt("Unmount", nil)
		e.mounts.failAt("Attached", nil)
		e.publish(r)
		e.end(r)
	},
	"a mount that somebody removed is logged, and a volume that was never mounted is not": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		for want := range 2 {
			e.publish(r)
			e.wantLines(want, "Volume is no longer mounted", `pod="shop/pod-v1"`)
			e.wantFiles(r, "a", "1")
			e.mounts.vanish(r.Target)
		}
	},
	"if links cannot be created after the switch, the write fails although its files are visible": func(e *env) {
		e.publishApp()
		e.writes.set(nil, func() error { return errFault })
		e.update(configMap("app"), "a", strings.Repeat("2", 5000))
		// The last generation stays for its readers.
		wantIs(e, "%v bytes counted, want what the files take now", e.used(), taken(2, 1)+pageSize+2*inodeSize)
		v := e.lookup("v1")
		if v.vol.files.Shown[configMap("app")] != e.objects.get(configMap("app")).Version {
			e.Error("an older answer would be taken for a newer one")
		}
	},
	"one volume's panic is an error of that volume, and is retried": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(configMap("other"), "b", "1")
		r, other := e.publishNew("v1"), e.request("v2", "configMap", "other")
		e.publish(other)
		e.writes.set(func() error { panic(canary) }, nil)
		e.update(configMap("app"), "a", "2")
		e.writes.set(nil, nil)
		e.update(configMap("other"), "b", "2")
		e.wantFiles(other, "b", "2")
		lines := e.logs.With("Something panicked", `volumeID="v1"`, `panicType="string"`)
		if len(lines) == 0 || !strings.Contains(lines[0], "stack=") {
			e.Errorf("logged %q", lines)
		}
		// The logs are searched for canary, the value of the panic, at the end of the test.
		after(retryMax)
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
		e.end(r, other)
	},
	"a 404 of something between the plugin and the API server says nothing about an object": func(e *env) {
		notFound := apierrors.NewGenericServerResponse(404, "get", resourceOf(configMap("app")), "app", "default backend - 404", 0, true)
		cause := fmt.Errorf("%w: %w", manager.ErrNotSynced, notFound)
		r := e.publishApp("configMap", "app", "optional", "true")
		e.objects.failWith(configMap("app"), cause)
		e.restart()
		e.wait(2 * testResync)
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		waiting := e.waiting(e.request("v2", "configMap", "app", "optional", "true"))
		e.wantReason(<-waiting, failure.ReasonUnavailable, "")
	},
	"a write that hangs delays the volumes of its pod, and no other pod": func(e *env) {
		r := e.publishApp()
		const pods, volumes = 40, 3
		var all []binding.Request
		for pod := range pods {
			all = append(all, e.volumesFor(fmt.Sprint("hostile-", pod), volumes)...)
		}
		release := e.writes.hang()
		for pod := range pods {
			e.objects.put(configMap(fmt.Sprint("hostile-", pod)), "a", hangs)
		}
		for _, value := range []string{"2", "3"} {
			e.updateApp(r, "a", value)
			e.wantBetween("%d writes hang, want one of each pod", int(e.writes.hanging.Load()), pods, pods)
			after(30 * time.Second)
		}
		release()
		after(retryMax + time.Second)
		e.wantFilesOf(all, "a", hangs)
		e.wantWorkers(pods + 1)
	},
	// A write ends after reconcileTimeout, when the hanging call ends, and its volume reports why. The volume is retried as after any
	// failure.
	"a hang without end": func(e *env) {
		r := e.volumesFor("hostile", 1)[0]
		release := e.writes.hang()
		e.objects.put(configMap("hostile"), "a", hangs)
		after(time.Hour)
		release()
		after(2 * retryMin)
		e.wantLines(1, errHangs.Error())
		e.wantProblem(r, "")
		e.wantFiles(r, "a", hangs)
	},
	"a call that waits for a pod whose write hangs can give up, and the work continues afterwards": func(e *env) {
		all := e.volumesFor("hostile", 2)
		release := e.writes.hang()
		e.objects.put(configMap("hostile"), "a", hangs)
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

		unpublished := e.unpublishing(all[1])
		e.wantWaiting(unpublished)
		release()
		e.wantDone(unpublished)
		after(retryMax)
		e.wantFiles(all[0], "a", hangs)
		e.unpublish(all[0])
		e.wantWorkers(0)
	},
	"the end of Run waits for a short time for a reconcile that hangs": func(e *env) {
		e.volumesFor("hostile", 3)
		release := e.writes.hang()
		e.objects.put(configMap("hostile"), "a", hangs)
		after(10 * time.Second)
		begin := time.Now()
		e.halt()
		defer synctest.Wait()
		defer release()
		e.wantTook(begin, stopTimeout)
	},
	"the resyncs of many volumes wake the process up at a few moments of each interval": func(e *env) {
		const count = 500
		e.objects.put(configMap("app"), "a", "1")
		e.publishMany(count)
		after(3 * e.opts.ResyncInterval)
		synctest.Wait() // this moment may be one of them
		e.objects.takeRefreshes(configMap("app"))
		after(e.opts.ResyncInterval)
		synctest.Wait()
		refreshes, moments := e.objects.takeRefreshes(configMap("app")), map[time.Time]bool{}
		for _, at := range refreshes {
			moments[at.Round(time.Microsecond)] = true
		}
		if len(refreshes) != count || len(moments) < 3 || len(moments) > resyncSlots+1 {
			e.Errorf("%d resyncs of %d volumes at %d moments", len(refreshes), count, len(moments))
		}
	},
	// A current volume whose objects report their changes has a resync ten times more rarely. One that is not current, or that needs
	// consent, has each.
	"resting volumes": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.opts.Reported = true
		e.restart()
		e.publish(e.request("v"))
		resyncs := func(least, most int) {
			e.Helper()
			e.objects.takeRefreshes(configMap("app"))
			after(30 * e.opts.ResyncInterval)
			synctest.Wait()
			if n := len(e.objects.takeRefreshes(configMap("app"))); n < least || n > most {
				e.Errorf("%d resyncs, want %d to %d", n, least, most)
			}
		}
		resyncs(2, 4)
		e.objects.remove(configMap("app"))
		resyncs(29, 31)
		e.objects.put(configMap("app"), "a", "2")
		resyncs(2, 5)
		e.objects.rollouts[configMap("app")] = "0%"
		e.objects.put(configMap("app"), "a", "3")
		e.wantCondition(ConditionHeld)
		resyncs(29, 31)
	},
	"a pod of which no volume is due costs no stack": func(e *env) {
		const count = 50
		e.objects.put(configMap("app"), "a", "1")
		synctest.Wait()
		before := runtime.NumGoroutine()
		all := e.publishMany(count)
		after(3 * e.opts.ResyncInterval) // generations that readers may still use are gone
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > 1 { // Go's runtime may have one of its own for a moment
			e.Errorf("%d goroutines more with %d pods", more, count)
		}
		e.objects.put(configMap("app"), "a", "2")
		synctest.Wait()
		e.wantFilesOf(all, "a", "2")
	},
	"the first of two answers that are due brings no reconcile, and the last one brings it at once": func(e *env) {
		refs := []volume.Ref{configMap("a"), configMap("b")}
		for _, ref := range refs {
			e.objects.put(ref, ref.Name, "1")
			e.objects.failWith(ref, &manager.PendingError{Ref: ref})
		}
		r := e.request("v", "sources", "[{configMap: {name: a}}, {configMap: {name: b}}]")
		done := e.publishing(r)
		synctest.Wait()
		e.objects.takeReads(refs[0])
		e.objects.failWith(refs[0], nil)
		synctest.Wait()
		e.wantBetween("the first of two answers brought %d reconciles", len(e.objects.takeReads(refs[0])), 0, 0)
		begin := time.Now()
		e.objects.failWith(refs[1], nil)
		if err := <-done; err != nil || time.Since(begin) > 0 {
			e.Errorf("published after %s: %v", time.Since(begin), err)
		}
	},
}

func TestAPublishThatPanicsLeavesNothingInTheWay(t *testing.T) {
	for _, method := range []string{"Create", "Attach", "Attached"} {
		inBubbleOf(t, method, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			e.mounts.on(method, func(string) error { panic("out of luck") })
			e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, "volume v1: "+failure.ErrPanicked.Error())
			e.mounts.on(method, nil)
			synctest.Wait()
			if method != "Attached" { // otherwise the next call finds the volume
				if left := e.objects.registrations(); len(left) > 0 || e.used() != 0 {
					e.Errorf("left registered: %v, %d bytes counted", left, e.used())
				}
				r.Attributes["optional"] = "true" // another spec: the first one is forgotten
			}
			e.publish(r)
			e.updateApp(r, "a", "2")
			e.end(r)
		})
	}
}

// A change between the read of the objects and the moment at which the volume is mounted must not be lost.
func TestAChangeDuringAPublishIsNotLost(t *testing.T) {
	for _, method := range []string{"Create", "Attach", "Close"} {
		inBubbleOf(t, method, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			e.mounts.on(method, func(string) error {
				e.mounts.on(method, nil)
				e.objects.put(configMap("app"), "a", "2")
				return nil
			})
			e.publish(r)
			e.settle()
			e.wantFiles(r, "a", "2")
		})
	}
}

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
	wantIs(e, "%v workers", len(e.p.table.workers), want)
}

// TestLostReport: a volume shows a change that nobody reported after two resyncs, or after ten if its objects should report their changes.
func TestLostReport(t *testing.T) {
	for reported, wait := range map[bool]time.Duration{false: 2 * testResync, true: 10 * testResync} {
		inBubbleOf(t, fmt.Sprint(reported), func(e *env) {
			e.opts.Reported = reported
			e.restart()
			r := e.publishApp()
			e.objects.Subscribe(func(volume.ServiceAccount, volume.Ref) {})
			for i := range 5 {
				after(time.Duration(i) * e.opts.ResyncInterval)
				value := fmt.Sprint("unreported ", i)
				e.objects.put(configMap("app"), "a", value)
				after(wait)
				synctest.Wait()
				e.wantFiles(r, "a", value)
			}
		})
	}
}
