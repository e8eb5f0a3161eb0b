package publisher

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestReadersGetTheirTime has changes come faster than a reader can read a
// generation: the first one shows at once, the next not before readTime is over,
// and then it is the latest.
func TestReadersGetTheirTime(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)

		e.objects.put(configMap("app"), "a", "1")
		synctest.Wait()
		e.wantFiles(r, "a", "1")
		e.objects.put(configMap("app"), "a", "2")
		synctest.Wait()
		e.objects.put(configMap("app"), "a", "3")
		synctest.Wait()
		after(readTime - time.Nanosecond)
		synctest.Wait()
		e.wantFiles(r, "a", "1")
		e.writes.times() // forget those until now
		after(time.Nanosecond)
		synctest.Wait()
		e.wantFiles(r, "a", "3")
		after(pruneTime)
		synctest.Wait()
		if n := len(e.writes.times()); n != 1 {
			t.Errorf("%d writes for the changes that were put off, want 1", n)
		}

		// After a rest a change shows at once again.
		e.objects.put(configMap("app"), "a", "4")
		synctest.Wait()
		e.wantFiles(r, "a", "4")
	})
}

// TestTheGenerationBeforeIsPruned sees to it that what may have been revoked does
// not stay on the node for longer than three times pruneTime after the last switch.
func TestTheGenerationBeforeIsPruned(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		stale := func() bool {
			synctest.Wait()
			return e.generations(r) > 1
		}
		e.objects.put(configMap("app"), "a", "1")
		if !stale() {
			t.Error("the generation before is gone at once")
		}
		after(pruneTime / 2)
		e.objects.put(configMap("app"), "a", "2")
		synctest.Wait()
		after(pruneTime - time.Nanosecond)
		if !stale() {
			t.Error("the generation before is gone before its time")
		}
		after(2*pruneTime + time.Nanosecond)
		if stale() {
			t.Error("the generation before is still there")
		}
		opened := e.mounts.count("Reopen")
		after(10 * time.Second)
		synctest.Wait()
		if n := e.mounts.count("Reopen") - opened; n != 0 {
			t.Errorf("the mount was opened %d times with nothing to do", n)
		}
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
	})
}

// TestAChangePutOffIsNotCurrent keeps a volume's problem until the files are written.
func TestAChangePutOffIsNotCurrent(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", "1")
		synctest.Wait()
		e.objects.remove(configMap("app"))
		e.settle()
		e.wantProblem(r, "not found")
		e.objects.put(configMap("app"), "a", "2")
		e.wantProblem(r, "not found")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
	})
}

// TestAVanishedMountIsNotPruned drops the volume instead.
func TestAVanishedMountIsNotPruned(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", "1")
		synctest.Wait()
		e.mounts.vanish(r.Target)
		after(pruneTime)
		synctest.Wait()
		if e.lookup("v1") != nil {
			t.Error("the volume is still known")
		}
	})
}
