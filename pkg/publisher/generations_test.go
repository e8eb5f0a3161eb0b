package publisher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

func TestGenerations(t *testing.T) { each(t, inBubble, generationsTests) }

var generationsTests = map[string]func(e *env){
	"each generation stays for pruneTime after it was replaced, whatever follows, and at most three times as long": func(e *env) {
		const interval = pruneTime / 5
		e.objects.put(configMap("app"), "a", "0", "b", "0")
		r := e.publishNew("v1")
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
				e.Fatalf("%d generations after %d changes", got, i)
			}
			after(interval - time.Nanosecond)
			synctest.Wait()
			content, err := reader.ReadFile("b")
			early, late := time.Since(superseded) < pruneTime, time.Since(superseded) > 3*pruneTime
			if early && err != nil || late && err == nil || err == nil && string(content) != "0" {
				e.Fatalf("after %v the reader sees %q, %v", time.Since(superseded), content, err)
			}
			after(time.Nanosecond)
		}
		after(3 * pruneTime)
		synctest.Wait()
		e.wantGenerations(r, 1)
		e.wantFiles(r, "a", "20", "b", "20")
		e.wantProblem(r, "")
	},
	"a handle that cannot be closed is reported, and later updates are still written": func(e *env) {
		r := e.publishApp()
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
	},
	"the ages of removed generations are forgotten": func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.publishNew("v1")
		for i := range 600 {
			e.objects.put(configMap("app"), "a", fmt.Sprint("x", i))
			after(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(e.lookup("v1").vol.files.generations.ends); n > 40 {
			e.Errorf("%d ages are kept, for %d generations", n, e.generations(r))
		}
	},
	"if the names of generations are in the future because the clock was set back, readers still have their second": func(e *env) {
		e.objects.put(configMap("app"), "a", "0")
		r := e.publishNew("v1")
		e.halt()
		dir := e.mounts.Directory(r.Target)
		now := e.generation(r)
		future := time.Now().Add(time.Hour).UTC().Format("..2006_01_02_15_04_05.000000000") + "0001"
		for _, err := range []error{
			os.Rename(filepath.Join(dir, now), filepath.Join(dir, future)),
			os.Remove(filepath.Join(dir, "..data")),
			os.Symlink(future, filepath.Join(dir, "..data")),
		} {
			e.must(err)
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
			e.Errorf("the reader sees %q, %v", content, err)
		}
		e.rest()
		e.wantGenerations(r, 1)
	},
}

// reader returns the generation that a reader has opened.
func (e *env) reader(r binding.Request) *os.Root {
	e.Helper()
	root := must.Get(os.OpenRoot(e.mounts.Directory(r.Target) + "/..data"))(e)
	e.Cleanup(func() { root.Close() })
	return root
}

// A change that fits into the total only without the last generation is written, and that generation is removed at once.
func TestAFullNodeKeepsNoGeneration(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.objects.put(configMap("app"), "a", pages(200))
		r := e.publishNew("v1")
		e.updateApp(r, "a", pages(201))
		if n := e.generations(r); n != 1 || e.used() != taken(201, 1) {
			t.Errorf("%d generations, %d bytes counted", n, e.used())
		}
	})
}

// Publishes at the same time may each find room but not all together: the node never shows more than its total.
func TestPublishesAtOnceStayWithinTheTotal(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
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

// generations returns how many generations a volume's file system holds.
func (e *env) generations(r binding.Request) int {
	e.Helper()
	n := 0
	for _, entry := range must.Get(os.ReadDir(e.mounts.Directory(r.Target)))(e) {
		if entry.IsDir() && strings.HasPrefix(entry.Name(), "..") {
			n++
		}
	}
	return n
}

// failReopen makes it impossible to change or prune the files of mounted volumes, until err is nil.
func (e *env) failReopen(err error) {
	e.mounts.failAt("IsMountedAt", err)
	e.mounts.failAt("Reopen", err)
}

func (e *env) wantGenerations(r binding.Request, want int) {
	e.Helper()
	e.wantBetween("%d generations", e.generations(r), want, want)
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
		{"killed, nothing known", func(e *env) { e.restartUnread() }},
	} {
		inBubbleOf(t, test.name, func(e *env) {
			r := e.publishApp()
			after(time.Nanosecond) // no two generations are created at the same moment
			e.objects.put(configMap("app"), "a", "2")
			synctest.Wait()
			e.wantGenerations(r, 2)
			test.then(e)
			after(pruneTime)
			synctest.Wait()
			e.wantGenerations(r, 1)
			e.wantFiles(r, "a", "2")
		})
	}
}
