package publisher

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
)

// status returns what the Publisher reports about its only volume.
func (e *env) status() VolumeStatus {
	e.Helper()
	synctest.Wait()
	all := slices.Collect(e.p.Volumes)
	if len(all) != 1 {
		e.Fatalf("%d volumes, want 1", len(all))
	}
	if err := leak.Check("the reason", all[0].Reason); err != nil {
		e.Error(err)
	}
	if !slices.Contains(Conditions(), all[0].Condition) {
		e.Errorf("condition %q is not listed", all[0].Condition)
	}
	return all[0]
}

// wantStatus checks the condition, since when it exists, and that the reason contains a text. "" means no reason.
func (e *env) wantStatus(condition Condition, since time.Duration, reason string) VolumeStatus {
	e.Helper()
	got := e.status()
	if lasts := time.Since(got.Since); got.Condition != condition || lasts != since || (got.Reason == "") != (reason == "") || !strings.Contains(got.Reason, reason) {
		e.Errorf("%s for %s, %q, want %s for %s, %q", got.Condition, lasts, got.Reason, condition, since, reason)
	}
	return got
}

func TestStatus(t *testing.T) { each(t, inBubble, statusTests) }

var statusTests = map[string]func(e *env){
	"the condition of a mounted volume isn't known before its pod and its objects have been read": func(e *env) {
		r := e.publishApp()
		e.objects.failWith(configMap("app"), errKMS)
		e.pods.set(volume.Env{}, errFault)
		e.restart()
		if s := e.wantStatus(ConditionUnknown, 0, "has not taken it over yet"); s.Pod.UID != r.Pod.UID || s.Pod.Name != r.Pod.Name || s.Bytes == 0 {
			e.Errorf("got %+v", s)
		}
		e.pods.set(volume.Env{}, nil)
		after(time.Minute)
		if s := e.status(); s.Condition != ConditionUnknown || !strings.Contains(s.Reason, "not synced") || s.Pod != r.Pod || len(s.Shown) != 1 {
			e.Errorf("got %+v", s)
		}
		e.objects.failWith(configMap("app"), nil)
		e.wantStatus(ConditionCurrent, 0, "")
	},
	"a pinned volume is Pinned once it is mounted: until then it has the condition of what its publish waits for": func(e *env) {
		r := e.request("v1", "configMap", "app", "updatePolicy", "Pinned")
		waiting := e.publishing(r)
		e.wantStatus(Condition(failure.RefNotFound), 0, `ConfigMap "shop/app" not found`)
		e.objects.put(configMap("app"), "a", "1")
		e.wantDone(waiting)
		e.wantStatus(ConditionPinned, 0, "")
	},
}

// TestOpenState: a volume whose opens are watched knows more than one whose opens aren't.
func TestOpenState(t *testing.T) {
	app := configMap("app")
	for want, s := range map[opened.State]VolumeStatus{
		opened.Unsupported: {Opened: map[volume.Ref]*opened.Object{app: {State: opened.Yes}}},
		opened.Unknown:     {OpensWatched: true, Opened: map[volume.Ref]*opened.Object{secret("app"): {State: opened.Yes}}},
		opened.Yes:         {OpensWatched: true, Opened: map[volume.Ref]*opened.Object{app: {State: opened.Yes}}},
		opened.No:          {OpensWatched: true, Opened: map[volume.Ref]*opened.Object{app: {State: opened.No}}},
	} {
		if got := s.OpenState(app); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// receiptsInBubble runs a test with watched opens.
func receiptsInBubble(t *testing.T, test func(e *env, opens *fakenode.Opens, o *fakeObserver)) {
	t.Helper()
	opens, o := fakenode.NewOpens(), &fakeObserver{}
	inBubbleWith(t, func(opts *Options) { opts.Opens, opts.Observer = opens, o }, func(e *env) {
		test(e, opens, o)
		all, _ := e.mounts.List(e.ctx)
		for _, m := range all {
			e.unpublish(binding.Request{VolumeID: m.VolumeID, Target: m.Target})
		}
		e.settle()
		e.wantBetween("%d watches are left", opens.Watched(), 0, 0)
	})
}

// open opens some of a volume's files at their present paths, which the kernel has not reported then.
func (e *env) open(r binding.Request, opens *fakenode.Opens, paths ...string) {
	e.Helper()
	for _, p := range paths {
		e.must(opens.Open(e.realPath(r, p)))
	}
}

// read is open, with a report, and waits until nothing happens any more.
func (e *env) read(r binding.Request, opens *fakenode.Opens, paths ...string) {
	e.Helper()
	e.open(r, opens, paths...)
	e.must(opens.Drain(time.Minute))
	e.rest()
}

func (e *env) realPath(r binding.Request, name string) string {
	e.Helper()
	return must.Get(filepath.EvalSymlinks(filepath.Join(e.mounts.Directory(r.Target), name)))(e)
}

// wantOpened compares the status of an object.
func (e *env) wantOpened(ref volume.Ref, state opened.State, unopened ...string) {
	e.Helper()
	o := e.status().Opened[ref]
	if o == nil {
		e.Fatalf("%s: nothing is told", ref)
	}
	if o.State != state || !slices.Equal(o.Unopened, unopened) || o.Count != len(unopened) || (state == opened.Yes) == o.At.IsZero() {
		e.Errorf("%s: %+v, want %s, not opened %q", ref, *o, state, unopened)
	}
}

func TestReceipts(t *testing.T) { each(t, receiptsInBubble, receiptsTests) }

var receiptsTests = map[string]func(e *env, opens *fakenode.Opens, o *fakeObserver){
	"an object is opened when each of its files is, and that is heard once": func(e *env, opens *fakenode.Opens, o *fakeObserver) {
		app, db := configMap("app"), secret("db")
		e.objects.put(app, "a", "1", "b", "1")
		e.objects.put(db, "p", "1")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db, items: [{key: p, path: deep/p}]}}, {versions: {path: v}}]")
		e.wantOpened(app, opened.No, "a", "b")
		e.wantOpened(db, opened.No, "deep/p")
		after(time.Minute)
		e.read(r, opens, "a")
		e.wantOpened(app, opened.No, "b")
		if len(o.opened) != 0 {
			e.Errorf("heard %v of objects that were opened in part", o.opened)
		}
		e.read(r, opens, "b", "deep/p")
		e.wantOpened(app, opened.Yes)
		e.wantOpened(db, opened.Yes)
		if len(o.opened) != 2 {
			e.Errorf("heard %v", o.opened)
		}
		e.wantNoErrors()
		e.end(r)
	},
	"an open of the last generation counts for a file that was linked, and for no other": func(e *env, opens *fakenode.Opens, _ *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.publishNew("v1")
		e.open(r, opens, "a", "b")
		e.update(app, "a", "1", "b", "2")
		e.read(r, opens)
		e.wantOpened(app, opened.No, "b")

		// A process that opens the old file just before the switch has not opened the new one.
		e.update(app, "a", "2", "b", "2")
		old := e.realPath(r, "a")
		opens.OnID = func() error { return opens.Open(old) }
		e.update(app, "a", "3", "b", "2")
		opens.OnID = nil
		e.read(r, opens)
		e.wantOpened(app, opened.No, "a", "b")
	},
	"the next process knows what was opened just before this one ended": func(e *env, opens *fakenode.Opens, _ *fakeObserver) {
		r := e.publishApp()
		e.open(r, opens, "a")
		e.restart()
		e.rest()
		e.wantOpened(configMap("app"), opened.Yes)
	},
	"work that finds the mount gone makes the volume examine its target again": func(e *env, opens *fakenode.Opens, _ *fakeObserver) {
		r := e.publishApp()
		e.open(r, opens, "a")
		e.mounts.vanish(r.Target)
		e.must(opens.Drain(time.Minute))
		e.rest()
		if v := e.lookup(r.VolumeID); v != nil {
			e.Error("the volume is still known")
		}
	},
	"a volume that is mounted anew is watched anew": func(e *env, opens *fakenode.Opens, _ *fakeObserver) {
		r := e.publishApp()
		e.mounts.vanish(r.Target)
		e.publish(r)
		e.wantBetween("%d watches were begun", opens.Begun(), 2, 2)
		e.wantBetween("%d watches are left", opens.Watched(), 1, 1)
		e.read(r, opens, "a")
		e.wantOpened(configMap("app"), opened.Yes)
	},
	"receipts of a pinned volume are written although its files never are": func(e *env, opens *fakenode.Opens, _ *fakeObserver) {
		r := e.publishApp("configMap", "app", "updatePolicy", "Pinned")
		e.read(r, opens, "a")
		e.wantOpened(configMap("app"), opened.Yes)
	},
	// After the clock was set back, an object counts as opened at once. Files of an earlier process have the times of the real clock here,
	// which is far ahead.
	"opened before it was written": func(e *env, opens *fakenode.Opens, o *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.publishNew("v1")
		e.read(r, opens, "a", "b")
		e.rest()
		e.restart()
		e.update(app, "a", "1", "b", "2")
		o.opened = nil
		e.read(r, opens, "b")
		e.wantOpened(app, opened.Yes)
		if len(o.opened) != 1 || o.opened[0] != 0 {
			e.Errorf("heard %v, want once 0", o.opened)
		}
	},
	"what can get no receipt is not reported: a versions file, and superseded files that somebody may have open": func(e *env, opens *fakenode.Opens, _ *fakeObserver) {
		r := e.publishApp("sources", "[{configMap: {name: app}}, {versions: {path: v}}]")
		if !opens.IsIgnored(e.realPath(r, "v")) || opens.IsIgnored(e.realPath(r, "a")) {
			e.Error("the file of versions is not ignored, or the other one is")
		}
		held := must.Get(os.Open(e.realPath(r, "a")))(e)
		defer held.Close()
		e.objects.put(configMap("app"), "a", "2")
		e.rest()
		after(3 * time.Second)
		e.rest()
		if !opens.IsIgnored(filepath.Join("/proc/self/fd", fmt.Sprint(held.Fd()))) {
			e.Error("the superseded file is not ignored")
		}
	},
	"if somebody has removed ..data, a volume that is never written again does not cause a busy loop": func(e *env, opens *fakenode.Opens, _ *fakeObserver) {
		r := e.publishApp("configMap", "app", "updatePolicy", "Pinned")
		e.halt()
		e.removeFile(r, "..data")
		var looks atomic.Int32
		e.mounts.on("Reopen", func(string) error {
			if looks.Add(1) > 100 { // the bubble's time stands still while a goroutine is busy
				after(time.Minute)
			}
			return nil
		})
		e.resume()
		e.rest()
		e.wantBetween("it was opened %d times", int(looks.Load()), 0, 10)
	},
}

// wantNoErrors fails the test if the log has an error of receipts.
func (e *env) wantNoErrors() {
	e.Helper()
	for _, text := range []string{"Can't keep receipts", "Can't end the watch"} {
		e.wantLines(0, text)
	}
}
