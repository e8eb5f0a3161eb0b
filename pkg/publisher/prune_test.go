package publisher

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/manager"
)

// generations returns how many generations a volume's file system holds.
func (e *env) generations(r Request) int {
	e.Helper()
	e.mounts.mu.Lock()
	dir := e.mounts.attached[r.Target].dir
	e.mounts.mu.Unlock()
	entries, err := os.ReadDir(dir)
	if err != nil {
		e.Fatal(err)
	}
	n := 0
	for _, entry := range entries {
		if entry.IsDir() && strings.HasPrefix(entry.Name(), "..") {
			n++
		}
	}
	return n
}

// What was shown before may have been revoked; nothing may keep it.
func TestTheGenerationBeforeGoesWhateverComes(t *testing.T) {
	for _, test := range []struct {
		name string
		then func(e *env)
	}{
		{"object deleted", func(e *env) { e.objects.remove(configMap("app")) }},
		{"object out of reach", func(e *env) { e.objects.failWith(configMap("app"), manager.ErrNotSynced) }},
		{"object forbidden", func(e *env) { e.objects.failWith(configMap("app"), fail(ReasonForbidden, "forbidden")) }},
		{"object too large", func(e *env) { e.objects.put(configMap("app"), "a", pages(300)) }},
		{"writes fail", func(e *env) {
			e.writes.set(func() error { return errFault }, nil)
			e.objects.put(configMap("app"), "a", "3")
		}},
		{"killed, object deleted", func(e *env) {
			e.objects.remove(configMap("app"))
			e.restart()
		}},
		{"killed, object out of reach", func(e *env) {
			e.objects.failWith(configMap("app"), manager.ErrNotSynced)
			e.restart()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				after(time.Nanosecond) // no two generations are born at the same moment
				e.objects.put(configMap("app"), "a", "2")
				synctest.Wait()
				if n := e.generations(r); n != 2 {
					t.Fatalf("%d generations after a change", n)
				}
				test.then(e)
				after(pruneTime)
				synctest.Wait()
				if n := e.generations(r); n != 1 {
					t.Errorf("%d generations after %v", n, pruneTime)
				}
				e.wantFiles(r, "a", "2")
			})
		})
	}
}

func TestAPruneThatFailsIsTriedAgain(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.mounts.failAt("StillAt", errors.New("no descriptor left"))
		e.mounts.failAt("Reopen", errors.New("no descriptor left"))
		after(2 * pruneTime)
		e.settle()
		e.wantProblem(r, "no descriptor left")
		e.mounts.failAt("Reopen", nil)
		after(retryMax)
		e.settle()
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations", n)
		}
		e.wantProblem(r, "")
	})
}

// While one generation is removed, the time of the next one may come.
func TestAPruneThatTakesLong(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		for _, value := range []string{"2", "3"} {
			e.objects.put(configMap("app"), "a", value)
			after(2 * readTime)
		}
		e.mounts.on("Usage", func() error { after(4 * readTime); return nil })
		after(3*pruneTime + 10*readTime)
		e.mounts.on("Usage", nil)
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations", n)
		}
	})
}

// A handle serves a change and its prune, unless something else is mounted there meanwhile.
func TestAHandleIsKeptUntilThePrune(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(map[bool]string{false: "mounted", true: "another mount"}[gone], func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				before := e.mounts.count("Reopen")
				for _, value := range []string{"2", "3"} {
					e.objects.put(configMap("app"), "a", value)
					after(2 * readTime)
				}
				want := 1
				if gone {
					var once sync.Once
					e.mounts.on("StillAt", func() (err error) {
						once.Do(func() { err = errors.New("another mount") })
						return err
					})
					want = 2
				}
				after(3 * pruneTime)
				if n := e.mounts.count("Reopen") - before; n != want {
					t.Errorf("opened %d times, want %d", n, want)
				}
				if n := e.generations(r); n != 1 {
					t.Errorf("%d generations", n)
				}
				e.objects.put(configMap("app"), "a", "4")
				e.settle()
				e.wantFiles(r, "a", "4")
				if n := e.mounts.count("Reopen") - before; n != want+1 {
					t.Errorf("opened %d times after the prune, want %d", n, want+1)
				}
			})
		})
	}
}
