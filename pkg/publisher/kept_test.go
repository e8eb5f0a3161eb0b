package publisher

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

// Each generation stays for pruneTime after it was replaced, whatever follows, and at most three times as long.
func TestEachGenerationStaysASecond(t *testing.T) {
	inBubble(t, func(e *env) {
		const interval = pruneTime / 5
		e.objects.put(configMap("app"), "a", "0", "b", "0")
		r := e.request("v1")
		e.publish(r)
		after(time.Nanosecond) // no two generations are created at the same moment
		reader := e.reader(r)
		var superseded time.Time
		for i := 1; i <= 20; i++ {
			e.objects.put(configMap("app"), "a", fmt.Sprint(i), "b", fmt.Sprint(i))
			synctest.Wait()
			if i == 1 {
				superseded = time.Now()
			}
			if got := e.generations(r); got < 1+min(i, 5) || got > 1+min(i, 15) {
				t.Fatalf("%d generations after %d changes", got, i)
			}
			after(interval - time.Nanosecond)
			synctest.Wait()
			content, err := reader.ReadFile("b")
			early, late := time.Since(superseded) < pruneTime, time.Since(superseded) > 3*pruneTime
			if early && err != nil || late && err == nil || err == nil && string(content) != "0" {
				t.Fatalf("after %v the reader sees %q, %v", time.Since(superseded), content, err)
			}
			after(time.Nanosecond)
		}
		after(3 * pruneTime)
		synctest.Wait()
		if got := e.generations(r); got != 1 {
			t.Errorf("%d generations stay", got)
		}
		e.wantFiles(r, "a", "20", "b", "20")
		e.wantProblem(r, "")
	})
}

// reader returns the generation that a reader has opened.
func (e *env) reader(r binding.Request) *os.Root {
	e.Helper()
	root, err := os.OpenRoot(e.mounts.directory(r.Target) + "/..data")
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { root.Close() })
	return root
}

// A handle that cannot be closed is reported. Later updates are still written.
func TestAHandleThatCannotBeClosed(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.mounts.failAt("Close", errFault)
		e.objects.put(configMap("app"), "a", "2")
		e.rest()
		e.wantFiles(r, "a", "2")
		e.wantEvents("VolumeUpdateFailed: " + errFault.Error())
		e.mounts.failAt("Close", nil)
		e.objects.put(configMap("app"), "a", "3")
		e.rest()
		e.wantFiles(r, "a", "3")
		e.wantProblem(r, "")
	})
}

// Generations of an earlier process count as superseded from the restart.
func TestGenerationsOverARestart(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		reader := e.reader(r)
		e.objects.put(configMap("app"), "a", "1")
		e.settle()
		after(pruneTime / 2)
		e.restart()
		e.objects.put(configMap("app"), "a", "2")
		after(pruneTime - time.Nanosecond)
		synctest.Wait()
		if content, err := reader.ReadFile("a"); err != nil || string(content) != "0" {
			t.Errorf("the reader sees %q, %v", content, err)
		}
		e.wantFiles(r, "a", "2")
		after(time.Nanosecond)
		e.settle()
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations", n)
		}
	})
}

// A change that fits into the total only without the last generation is written, and that generation is removed at once.
func TestAFullNodeKeepsNoGeneration(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(200))
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", pages(201))
		e.settle()
		e.wantFiles(r, "a", pages(201))
		if n := e.generations(r); n != 1 || e.used() != taken(201, 1) {
			t.Errorf("%d generations, %d bytes counted", n, e.used())
		}
	})
}

// Publishes at the same time may each find room but not all together: the node never shows more than its total.
func TestPublishesAtOnceStayWithinTheTotal(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(100))
		made, full := 0, 0
		var all []<-chan error
		for i := range 8 {
			all = append(all, e.publishing(e.request(fmt.Sprint("v", i))))
		}
		for _, err := range all {
			if err := <-err; err == nil {
				made++
			} else {
				e.wantReason(err, failure.ReasonNodeFull, "")
				full++
			}
		}
		if made+full != 8 || full < 6 || e.used() != int64(made)*taken(100, 1) {
			t.Errorf("%d were made, %d refused, %d bytes counted", made, full, e.used())
		}
	})
}

// A file that was withdrawn, and that a failed write has created again, is withdrawn again.
func TestAHalfWrittenFileIsWithdrawn(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["writeStrategy"] = "InPlace"
		e.publish(r)
		access.grant(sharedConfig)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced) // no update is possible
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "", "app.env", "CA=c1\nOWN=1\n")
		e.writes.set(nil, func() error { return errFault })
		e.objects.failWith(configMap("app"), nil)
		access.grant(sharedConfig, sharedSecret)
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		access.grant(sharedConfig)
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "", "app.env", "CA=c1\nOWN=1\n")
	})
}

// TestAgesAreForgotten: the ages of removed generations are forgotten.
func TestAgesAreForgotten(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		for i := range 600 {
			e.objects.put(configMap("app"), "a", fmt.Sprint("x", i))
			after(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(e.lookup("v1").vol.files.generations.ends); n > 40 {
			t.Errorf("%d ages are kept, for %d generations", n, e.generations(r))
		}
	})
}
