package publisher

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestAHandleServesWritesThatFollowEachOther counts what it takes to write a volume three
// times within a second, and to prune it.
func TestAHandleServesWritesThatFollowEachOther(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		before := e.mounts.count("Reopen")
		for i := range 3 {
			e.objects.put(configMap("app"), "a", fmt.Sprint(i+1))
			after(2 * readTime)
			e.settle()
			e.wantFiles(r, "a", fmt.Sprint(i+1))
		}
		if got := e.p.kept.Load(); got != 1 {
			t.Errorf("%d handles are kept after the writes, want 1", got)
		}
		after(2 * pruneTime)
		e.settle()
		if got := e.mounts.count("Reopen") - before; got != 1 {
			t.Errorf("the volume was opened %d times, want once", got)
		}
		if n := e.generations(r); n != 1 || e.p.kept.Load() != 1 {
			t.Errorf("%d generations and %d handles after the prune, want one each", n, e.p.kept.Load())
		}
		after(keepTime)
		e.settle()
		if got := e.mounts.open(); got != 0 || e.p.kept.Load() != 0 {
			t.Errorf("%d handles are open and %d kept a while after the last write, want none", got, e.p.kept.Load())
		}
	})
}

// TestAKeptHandleOfAnotherMountIsNotUsed has the mount vanish, and be hidden, between a write
// and the prune.
func TestAKeptHandleOfAnotherMountIsNotUsed(t *testing.T) {
	for name, replace := range map[string]func(e *env, r Request){
		"unmounted": func(e *env, r Request) { e.mounts.vanish(r.Target) },
		"hidden":    func(e *env, r Request) { e.mounts.setForeign(r.Target, true) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				replace(e, r)
				e.objects.put(configMap("app"), "a", "3")
				after(2 * readTime)
				e.settle()
				if e.p.lookup(r.VolumeID) != nil || e.p.kept.Load() != 0 {
					t.Errorf("the volume is known still, or one of %d handles is its", e.p.kept.Load())
				}
				if name == "unmounted" {
					e.wantEvents()
					return
				}
				// Somebody mounted over it, or spoilt its attribute: that must not pass in silence.
				e.wantEvents("VolumeUpdateFailed: open volume v1")
				if s := e.status(); s.Condition != ConditionUnknown || !strings.Contains(s.Reason, "until the kubelet publishes it again") {
					t.Errorf("status %+v", s)
				}
				e.mounts.setForeign(r.Target, false)
				e.publish(r)
				e.settle()
				e.wantFiles(r, "a", "3")
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// TestHandlesAreGivenBack counts the open handles after each end of a volume, or of all.
func TestHandlesAreGivenBack(t *testing.T) {
	for name, end := range map[string]func(e *env, r Request){
		"unpublish": func(e *env, r Request) { e.unpublish(r) },
		"a write that fails": func(e *env, r Request) {
			e.writes.set(func() error { return errors.New("injected fault") }, nil)
			e.objects.put(configMap("app"), "a", "3")
			after(2 * readTime)
			e.settle()
		},
		"the end of the publisher": func(e *env, _ Request) { e.halt() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				if e.p.kept.Load() != 1 {
					t.Fatal("no handle is kept")
				}
				end(e, r)
				if n := e.mounts.open(); n != 0 || e.p.kept.Load() != 0 {
					t.Errorf("%d handles are open, %d are kept", n, e.p.kept.Load())
				}
			})
		})
	}
}

// TestManyVolumesKeepNoHandle: beyond a bound each write gives its handle back.
func TestManyVolumesKeepNoHandle(t *testing.T) {
	inBubble(t, func(e *env) {
		const most, volumes = 5, 15
		e.p.maxKept = most
		e.objects.put(configMap("app"), "a", "1")
		for i := range volumes {
			e.publish(e.request(fmt.Sprint("v", i)))
		}
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		if got := e.mounts.open(); got != most || e.p.kept.Load() != most {
			t.Errorf("%d handles are open and %d kept, want %d", got, e.p.kept.Load(), most)
		}
		after(keepTime)
		e.settle()
		if got := e.mounts.open(); got != 0 {
			t.Errorf("%d handles are open a while after the writes", got)
		}
	})
}

// TestARestartKeepsNoHandle: volumes that only were compared are not likely to change.
func TestARestartKeepsNoHandle(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
		e.restart()
		e.settle()
		if got := e.mounts.open(); got != 0 || e.mounts.count("Reopen") == 0 {
			t.Errorf("%d handles are open after a restart that opened %d", got, e.mounts.count("Reopen"))
		}
	})
}
