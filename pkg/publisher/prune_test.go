package publisher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func TestReadersKeepTheGenerationBeforeForAWhile(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations after the publish", n)
		}
		reader, err := os.OpenRoot(filepath.Join(e.mounts.dir, "v1.1", "..data"))
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		e.objects.put(configMap("app"), "a", "2")
		after(pruneTime - 1)
		e.settle()
		if text, err := reader.ReadFile("a"); string(text) != "1" {
			t.Errorf("a reader that opened ..data before the switch got %q, %v", text, err)
		}
		after(1)
		e.settle()
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations after %v", n, pruneTime)
		}
		e.wantFiles(r, "a", "2")
		opened := e.mounts.count("Reopen")
		after(4 * testResync)
		if n := e.mounts.count("Reopen"); n != opened {
			t.Errorf("the mount was opened %d times more", n-opened)
		}
	})
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
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				if n := e.generations(r); n != 2 {
					t.Fatalf("%d generations after a change", n)
				}
				test.then(e)
				after(pruneTime)
				e.settle()
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

// Of a burst of changes the first is shown at once and the latest when a reader of
// the first has had its time.
func TestABurstOfChanges(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		begin := time.Now()
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		for _, value := range []string{"3", "4", "5"} {
			after(readTime / 10)
			e.objects.put(configMap("app"), "a", value)
			e.settle()
			e.wantFiles(r, "a", "2")
		}
		after(readTime - time.Since(begin))
		e.settle()
		e.wantFiles(r, "a", "5")
		if n := e.mounts.count("Reopen"); n != 2 {
			t.Errorf("the mount was opened %d times", n)
		}
		after(readTime)
		e.objects.put(configMap("app"), "a", "6")
		e.settle()
		e.wantFiles(r, "a", "6")
	})
}

// A mount that vanishes between a write and its prune is not written to either.
func TestAPruneProvesTheMount(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		dir := e.mounts.vanish(r.Target)
		after(pruneTime)
		e.settle()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 4 { // two generations, ..data and a
			t.Errorf("the target's directory has %v, %v", entries, err)
		}
		if len(e.objects.registrations()) > 0 || len(e.stateFiles()) > 0 {
			t.Error("the volume was not dropped")
		}
	})
}
