package publisher

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/manager"
)

// generations returns how many generations a volume's file system holds.
func (e *env) generations(r binding.Request) int {
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

// What was shown before may have been revoked, so nothing may keep it.
func TestTheGenerationBeforeGoesWhateverComes(t *testing.T) {
	for _, test := range []struct {
		name string
		then func(e *env)
	}{
		{"object deleted", func(e *env) { e.objects.remove(configMap("app")) }},
		{"object out of reach", func(e *env) { e.objects.failWith(configMap("app"), manager.ErrNotSynced) }},
		{"object forbidden", func(e *env) { e.objects.failWith(configMap("app"), errForbiddenObject) }},
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
				after(time.Nanosecond) // no two generations are created at the same moment
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
