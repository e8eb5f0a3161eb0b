package publisher

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/binding"
)

// TestAMissedMoment: a change that could not be written at the pod's moment does not make a later one appear at once, on all pods.
func TestAMissedMoment(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := spreadRequest(e)
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.objects.remove(configMap("app"))
		after(3 * testSpread)
		e.settle()
		e.objects.put(configMap("app"), "a", "3")
		e.settle()
		e.wantFiles(r, "a", "1")
		untilMoment(r)
		e.wantFiles(r, "a", "1")
		after(time.Second)
		e.wantFiles(r, "a", "3")
		e.unpublish(r)
	})
}

// TestAWithdrawalInPlaceIsNotUrgent: a withdrawal from files that are rewritten in place does not make a change urgent that waits for the
// pod's moment.
func TestAWithdrawalInPlaceIsNotUrgent(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["sources"], r.Attributes["spread"], r.Attributes["writeStrategy"] = acrossSources, "1h", "InPlace"
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		access.grant()
		after(reviewTime)
		e.settle()
		if content, err := os.ReadFile(e.realPath(r, "a")); err != nil || string(content) != "1" {
			t.Errorf("the file has %q, %v", content, err)
		}
		e.wantProblem(r, secretRefused)
		e.unpublish(r)
	})
}

// TestReadersAfterAClockStep: if the names of generations are in the future because the clock was set back, readers still have their
// second.
func TestReadersAfterAClockStep(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		e.halt()
		dir := e.mounts.directory(r.Target)
		now, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		future := time.Now().Add(time.Hour).UTC().Format("..2006_01_02_15_04_05.000000000") + "0001"
		for _, err := range []error{
			os.Rename(filepath.Join(dir, now), filepath.Join(dir, future)),
			os.Remove(filepath.Join(dir, "..data")),
			os.Symlink(future, filepath.Join(dir, "..data")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		e.restart()
		after(3 * pruneTime)
		e.objects.put(configMap("app"), "a", "1")
		after(pruneTime - 2*readTime)
		reader := e.reader(r)
		e.objects.put(configMap("app"), "a", "2")
		after(pruneTime / 2)
		e.wantFiles(r, "a", "2")
		if content, err := reader.ReadFile("a"); err != nil || string(content) != "1" {
			t.Errorf("the reader sees %q, %v", content, err)
		}
		e.rest()
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations are left", n)
		}
	})
}

// TestAnOldGenerationGoesAfterARestart: also while it is not known what is wanted of the volume.
func TestAnOldGenerationGoesAfterARestart(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("db"), "p", "old")
		r := e.request("v1", "secret", "db")
		e.publish(r)
		e.objects.put(secret("db"), "p", "new")
		e.settle()
		e.restartUnread()
		if n := e.generations(r); n != 2 {
			t.Fatalf("%d generations", n)
		}
		e.rest()
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations are left", n)
		}
	})
}

// TestNothingToLookAt: if somebody has removed ..data, a volume that is never written again does not cause a busy loop.
func TestNothingToLookAt(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1", "configMap", "app", "updatePolicy", "Pinned")
		e.publish(r)
		e.halt()
		if err := os.Remove(filepath.Join(e.mounts.directory(r.Target), "..data")); err != nil {
			t.Fatal(err)
		}
		opens.forget()
		before := e.mounts.count("Reopen")
		stop := make(chan struct{})
		go func() { // the bubble's time stands still while a goroutine is busy
			defer close(stop)
			e.restart()
			e.rest()
		}()
		for range 1000 {
			select {
			case <-stop:
			default:
				if e.mounts.count("Reopen")-before > 100 {
					t.Error("it is looked at again and again")
					e.halt()
				}
				after(time.Millisecond)
			}
		}
		<-stop
		if n := e.mounts.count("Reopen") - before; n > 10 {
			t.Errorf("it was opened %d times", n)
		}
		e.unpublish(r)
	})
}

// TestTheLimitIsOfOneGeneration: memory of superseded generations does not let a larger update through.
func TestTheLimitIsOfOneGeneration(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", pages(200))
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", pages(250))
		e.settle()
		e.objects.put(configMap("app"), "a", pages(300))
		e.settle()
		e.wantFiles(r, "a", pages(250))
		e.wantProblem(r, "more than the 1048576 bytes")
		e.unpublish(r)
	})
}
