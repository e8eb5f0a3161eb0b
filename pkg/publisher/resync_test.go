package publisher

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// TestResyncsShareMoments: the resyncs of many volumes wake the process up at a few moments of each interval.
func TestResyncsShareMoments(t *testing.T) {
	inBubble(t, func(e *env) {
		const count = 500
		e.objects.put(configMap("app"), "a", "1")
		for i := range count {
			e.publish(e.request(fmt.Sprint("v", i)))
		}
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
			t.Errorf("%d resyncs of %d volumes at %d moments", len(refreshes), count, len(moments))
		}
	})
}

// TestRestingVolumes: a current volume whose objects report their changes has a resync ten times more rarely. One that is not current, or that
// needs consent, has each.
func TestRestingVolumes(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.opts.Reported = true
		e.restart()
		e.publish(e.request("v"))
		resyncs := func(least, most int) {
			t.Helper()
			e.objects.takeRefreshes(configMap("app"))
			after(30 * e.opts.ResyncInterval)
			synctest.Wait()
			if n := len(e.objects.takeRefreshes(configMap("app"))); n < least || n > most {
				t.Errorf("%d resyncs, want %d to %d", n, least, most)
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
	})
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

// TestPodsRestWithoutGoroutines: a pod of which no volume is due costs no stack.
func TestPodsRestWithoutGoroutines(t *testing.T) {
	inBubble(t, func(e *env) {
		const count = 50
		e.objects.put(configMap("app"), "a", "1")
		synctest.Wait()
		before := runtime.NumGoroutine()
		all := make([]binding.Request, count) // each is a pod's of its own
		for i := range all {
			all[i] = e.request(fmt.Sprint("v", i))
			e.publish(all[i])
		}
		after(3 * e.opts.ResyncInterval) // generations that readers may still use are gone
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > 1 { // Go's runtime may have one of its own for a moment
			t.Errorf("%d goroutines more with %d pods", more, count)
		}
		e.objects.put(configMap("app"), "a", "2")
		synctest.Wait()
		e.wantFilesOf(all, "a", "2")
	})
}

// TestManyFirstAnswers: after a restart the first answers about many objects of a volume bring few reconciles.
func TestManyFirstAnswers(t *testing.T) {
	inBubble(t, func(e *env) {
		const count = 200
		name := func(i int) string { return fmt.Sprintf("app-%03d", i) }
		var sources strings.Builder
		for i := range count {
			e.objects.put(configMap(name(i)), name(i), "1")
			fmt.Fprintf(&sources, "- configMap: {name: %s}\n", name(i))
		}
		r := e.publishNew("v", "sources", sources.String())
		var files []string
		for i := range count {
			e.objects.put(configMap(name(i)), name(i), "2")
			e.objects.failWith(configMap(name(i)), &manager.PendingError{Ref: configMap(name(i))})
			files = append(files, name(i), "2")
		}
		e.resume()
		e.objects.takeReads(configMap(name(0)))
		for i := range count {
			after(time.Millisecond)
			e.objects.failWith(configMap(name(i)), nil)
		}
		n := len(e.objects.takeReads(configMap(name(0))))
		after(time.Second)
		e.wantFiles(r, files...)
		if n > count/10 {
			t.Errorf("%d answers brought %d reconciles", count, n)
		}
	})
}

// TestTheLastFirstAnswer brings its reconcile at once.
func TestTheLastFirstAnswer(t *testing.T) {
	inBubble(t, func(e *env) {
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
			t.Errorf("published after %s: %v", time.Since(begin), err)
		}
	})
}
