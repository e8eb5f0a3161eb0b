package publisher

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestReadersGetTheirTime makes changes faster than a reader can read a generation. The first one shows at once, the next one not before
// readTime is over, and then with the latest state.
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
		e.writes.times() // forget earlier writes
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
