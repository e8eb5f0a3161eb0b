package publisher

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/manager"
)

// Each generation stays for pruneTime from its own switch on, whatever comes after it.
func TestEachGenerationStaysASecond(t *testing.T) {
	inBubble(t, func(e *env) {
		const interval = pruneTime / 5
		e.objects.put(configMap("app"), "a", "0", "b", "0")
		r := e.request("v1")
		e.publish(r)
		reader := e.reader(r)
		var superseded time.Time
		for i := 1; i <= 20; i++ {
			e.objects.put(configMap("app"), "a", fmt.Sprint(i), "b", fmt.Sprint(i))
			synctest.Wait()
			if i == 1 {
				superseded = time.Now()
			}
			if got, want := e.generations(r), 1+min(i, 5); got != want {
				t.Fatalf("%d generations after %d changes, want %d", got, i, want)
			}
			after(interval - time.Nanosecond)
			synctest.Wait()
			content, err := reader.ReadFile("b")
			if early := time.Since(superseded) < pruneTime; early != (err == nil) || early && string(content) != "0" {
				t.Fatalf("after %v the reader sees %q, %v", time.Since(superseded), content, err)
			}
			after(time.Nanosecond)
		}
		for want := 5; want > 0; want-- {
			synctest.Wait()
			if got := e.generations(r); got != want {
				t.Errorf("%d generations, want %d", got, want)
			}
			after(interval)
		}
		e.wantFiles(r, "a", "20", "b", "20")
		e.wantProblem(r, "")
	})
}

// reader returns the generation that a reader has opened.
func (e *env) reader(r Request) *os.Root {
	e.Helper()
	root, err := os.OpenRoot(e.mounts.directory(r.Target) + "/..data")
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { root.Close() })
	return root
}

// In a burst eight generations stay, so that a reader has eight times readTime.
func TestReadersInABurst(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		for i := 1; i <= 60; i++ {
			e.objects.put(configMap("app"), "a", fmt.Sprint(i))
			synctest.Wait()
			reader := e.reader(r)
			// Changes come faster than ..data switches.
			for range 8 {
				after(readTime / 2)
				i++
				e.objects.put(configMap("app"), "a", fmt.Sprint(i))
				synctest.Wait()
				after(readTime / 2)
				synctest.Wait()
				if _, err := reader.ReadFile("a"); err != nil {
					t.Fatal(err)
				}
			}
			if n := e.generations(r); n != 9 {
				t.Fatalf("%d generations", n)
			}
		}
		e.rest()
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations", n)
		}
	})
}

// What an earlier process left is stale from the restart on.
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

// What is kept for readers alone goes before the node's total is the reason for a refusal, that of
// other volumes too.
func TestKeptFilesMakeRoom(t *testing.T) {
	var keys []string
	for i := range 250 {
		keys = append(keys, fmt.Sprint("key", i), "")
	}
	for name, test := range map[string]struct {
		strategy string
		before   []string
		publish  bool // or another update
	}{
		"a generation, for a publish":  {"Atomic", []string{"a", pages(200)}, true},
		"a generation, for an update":  {"Atomic", []string{"a", pages(200)}, false},
		"emptied files, for a publish": {"InPlace", keys, true},
		"emptied files, for an update": {"InPlace", keys, false},
	} {
		t.Run(name, func(t *testing.T) {
			inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
				e.run()
				e.objects.put(configMap("app"), test.before...)
				r := e.request("v1", "configMap", "app", "writeStrategy", test.strategy)
				e.publish(r)
				e.objects.put(configMap("large"), "a", "small")
				other := e.request("v2", "configMap", "large")
				if !test.publish {
					e.publish(other)
				}
				e.objects.put(configMap("app"), "a", "1")
				e.settle()
				if e.used() < 400*1024 {
					t.Fatalf("%d bytes counted, nothing is kept", e.used())
				}
				e.objects.put(configMap("large"), "a", pages(180))
				if test.publish {
					e.publish(other)
				}
				e.settle()
				e.wantFiles(other, "a", pages(180))
				e.wantFiles(r, "a", "1")
				e.wantEvents()
				e.rest()
				if want := taken(180, 1) + taken(1, 1); e.used() != want {
					t.Errorf("%d bytes counted, want %d", e.used(), want)
				}
				e.unpublish(r)
				e.unpublish(other)
				e.wantNothing()
			})
		})
	}
}

// A change that would exceed the total but for the generation before is written, and that one goes at once.
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

// What readers hold counts, is told, and is measured again before a refusal.
func TestHeldFilesCount(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(150))
		r := e.request("v1")
		e.publish(r)
		e.mounts.hold(r.Target, 150*pageSize) // as soon as the first file has no name any more
		e.objects.put(configMap("app"), "a", "1")
		e.settle()
		e.rest()
		if s := e.status(); s.HeldBytes < 149*pageSize || s.HeldBytes > 150*pageSize || s.Bytes != taken(151, 1) {
			t.Errorf("%d bytes, %d held, want %d", s.Bytes, s.HeldBytes, 150*pageSize)
		}
		e.objects.put(configMap("other"), "a", pages(150))
		other := e.request("v2", "configMap", "other")
		err := e.p.Publish(e.ctx, other)
		e.wantReason(err, ReasonNodeFull, "")
		if !strings.Contains(err.Error(), "readers hold 6") {
			t.Errorf("it does not tell of readers: %v", err)
		}
		e.wantEvents("VolumeUpdateFailed")
		// The next change of the volume itself would be held too.
		e.objects.put(configMap("app"), "a", pages(120))
		e.settle()
		e.wantProblem(r, "--max-total-size")
		e.wantFiles(r, "a", "1")
		e.wantEvents("VolumeUpdateFailed")
		e.mounts.hold(r.Target, 0)
		after(2*retryMax + 2*testResync)
		e.settle()
		e.wantFiles(r, "a", pages(120))
		e.objects.put(configMap("app"), "a", "1")
		e.settle()
		e.rest()
		e.mounts.hold(r.Target, 200*pageSize)
		after(2 * testResync)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.rest()
		e.mounts.hold(r.Target, 0)
		e.publish(other)
		if got := slices.Collect(e.p.Volumes); got[0].HeldBytes+got[1].HeldBytes != 0 {
			t.Errorf("held: %+v", got)
		}
	})
}

// A resync notices that readers have closed old files.
func TestHeldFilesAreMeasuredAgain(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.request("v1")
		e.publish(r)
		e.mounts.hold(r.Target, pageSize)
		e.objects.put(configMap("app"), "a", "1")
		e.settle()
		e.rest()
		if e.status().HeldBytes == 0 {
			t.Error("nothing is told to be held")
		}
		e.mounts.hold(r.Target, 0)
		after(2 * testResync)
		e.settle()
		if s := e.status(); s.HeldBytes != 0 || s.Bytes != taken(1, 1) {
			t.Errorf("%d bytes, %d held", s.Bytes, s.HeldBytes)
		}
	})
}

// Where readers of old files take the room, a change of another volume waits even if it needs no more
// than what it replaces: it might be held as well.
func TestHeldFilesAreBounded(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		var requests []Request
		for _, id := range []string{"v1", "v2"} {
			e.objects.put(configMap(id), "a", pages(120))
			r := e.request(id, "configMap", id)
			e.publish(r)
			requests = append(requests, r)
		}
		e.mounts.hold(requests[0].Target, 120*pageSize)
		e.objects.put(configMap("v1"), "a", pages(120)+"x")
		e.settle()
		e.rest()
		e.objects.put(configMap("v2"), "a", strings.Repeat("y", 120*pageSize))
		e.settle()
		e.wantFiles(requests[1], "a", pages(120))
		e.wantProblem(requests[1], "--max-total-size")
		e.mounts.hold(requests[0].Target, 0)
		after(retryMax)
		e.settle()
		e.wantFiles(requests[1], "a", strings.Repeat("y", 120*pageSize))
		e.wantProblem(requests[1], "")
	})
}

// A volume whose prune hangs holds up the publish of another no longer than reclaimTime.
func TestAReclaimThatHangs(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(200))
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", "1")
		e.settle()
		e.objects.put(configMap("other"), "a", pages(150))
		release := e.writes.hangPrunes()
		begin := time.Now()
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "configMap", "other")), ReasonNodeFull, "")
		if took := time.Since(begin); took != reclaimTime {
			t.Errorf("it took %v", took)
		}
		begin = time.Now()
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "configMap", "other")), ReasonNodeFull, "")
		if took := time.Since(begin); took > reclaimTime {
			t.Errorf("the second time it took %v", took)
		}
		release()
		e.settle()
		e.rest()
		e.publish(e.request("v2", "configMap", "other"))
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations", n)
		}
	})
}

// A volume over a limit that was lowered takes what is no larger than what it has.
func TestALowerLimitKeepsWhatIsThere(t *testing.T) {
	empty := func(n int, prefix string) (pairs []string) {
		for i := range n {
			pairs = append(pairs, fmt.Sprint(prefix, i), "")
		}
		return pairs
	}
	for name, test := range map[string]struct{ before, same, more []string }{
		"bytes":  {[]string{"a", pages(100)}, []string{"a", pages(99) + "y"}, []string{"a", pages(101)}},
		"inodes": {empty(800, "x"), empty(800, "y"), empty(801, "z")},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), test.before...)
				r := e.request("v1")
				e.publish(r)
				e.opts.MaxVolumeSize = 50 * pageSize
				e.restart()
				e.settle()
				e.objects.put(configMap("app"), test.same...)
				e.settle()
				e.wantProblem(r, "")
				e.wantFiles(r, test.same...)
				e.objects.put(configMap("app"), test.more...)
				e.settle()
				e.wantProblem(r, "--max-volume-size")
				e.wantFiles(r, test.same...)
			})
		})
	}
}

// A write that fails half-way may have put a file there: a first refusal of its object takes it as
// little away as any other.
func TestAHalfWrittenFileIsThere(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		r.Attributes["writeStrategy"] = "InPlace"
		e.objects.remove(sharedSecret)
		e.publish(r)
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
		e.writes.set(nil, func() error { return errFault })
		e.objects.put(sharedSecret, "password", "p1")
		e.settle()
		files := []string{"a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n"}
		e.wantFiles(r, files...)
		v := e.p.lookup("v1")
		_ = v.worker.lock(e.ctx)
		if !v.contents.named[sharedSecret] {
			t.Error("it is not known that a file may name the Secret")
		}
		v.worker.unlock()
		access.takeAsked()
		e.takeUntil(func() bool { return len(access.takeAsked()) > 0 }) // by a resync
		access.grant()
		e.takeUntil(func() bool { return len(access.takeAsked()) > 0 })
		e.settle()
		e.wantFiles(r, files...)
		access.grant(sharedSecret, sharedConfig)
		e.confirm()
		e.wantFiles(r, files...)
		e.writes.set(nil, nil)
		after(retryMax)
		e.settle()
		e.wantProblem(r, "")
		e.wantFiles(r, files...)
	})
}

// A file that was withdrawn once and that a write has put there again before it failed is withdrawn again.
func TestAHalfWrittenFileIsWithdrawn(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
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
