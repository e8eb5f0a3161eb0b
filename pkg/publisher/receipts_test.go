package publisher

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
)

// receiptsInBubble runs a test with watched opens.
func receiptsInBubble(t *testing.T, test func(e *env, opens *fakeOpens, o *fakeObserver)) {
	t.Helper()
	opens, o := newFakeOpens(), &fakeObserver{}
	inBubbleWith(t, func(opts *Options) { opts.Opens, opts.Observer = opens, o }, func(e *env) {
		test(e, opens, o)
		all, _ := e.mounts.List(e.ctx)
		for _, m := range all {
			e.unpublish(binding.Request{VolumeID: m.VolumeID, Target: m.Target})
		}
		e.settle()
		e.wantBetween("%d watches are left", opens.watched(), 0, 0)
	})
}

// open opens some of a volume's files at their present paths, which the kernel has not reported then.
func (e *env) open(r binding.Request, opens *fakeOpens, paths ...string) {
	e.Helper()
	for _, p := range paths {
		if err := opens.open(e.realPath(r, p)); err != nil {
			e.Fatal(err)
		}
	}
}

// read is open, with a report, and waits until nothing happens any more.
func (e *env) read(r binding.Request, opens *fakeOpens, paths ...string) {
	e.Helper()
	e.open(r, opens, paths...)
	if err := opens.Drain(time.Minute); err != nil {
		e.Fatal(err)
	}
	e.rest()
}

func (e *env) realPath(r binding.Request, name string) string {
	e.Helper()
	path, err := filepath.EvalSymlinks(filepath.Join(e.mounts.directory(r.Target), name))
	if err != nil {
		e.Fatal(err)
	}
	return path
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

// TestReceipts: an object is opened when each of its files is. A new version is not opened, apart from files that did not change.
func TestReceipts(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, o *fakeObserver) {
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
			t.Errorf("heard %v of objects that were opened in part", o.opened)
		}
		e.read(r, opens, "b", "deep/p")
		e.wantOpened(app, opened.Yes)
		e.wantOpened(db, opened.Yes)
		if len(o.opened) != 2 {
			t.Errorf("heard %v", o.opened)
		}
		e.update(app, "a", "1", "b", "2")
		e.wantOpened(app, opened.No, "b")
		e.wantOpened(db, opened.Yes)
		e.rest()
		e.halt()
		opens.forget()
		e.restart() // receipts are kept, but nobody saw who opened the other files
		e.rest()
		e.wantOpened(app, opened.Unknown, "b")
		e.wantOpened(db, opened.Yes)
		e.update(app, "a", "2", "b", "2")
		e.wantOpened(app, opened.No, "a", "b") // for the new file it is known
		e.read(r, opens, "a")
		e.wantOpened(app, opened.Unknown, "b")
		e.read(r, opens, "b")
		e.wantOpened(app, opened.Yes)
		e.wantNoErrors()
		e.end(r)
	})
}

// TestReceiptsAfterAWithdrawal: files that a refusal removes have no receipts, and the other files keep theirs.
func TestReceiptsAfterAWithdrawal(t *testing.T) {
	opens, access := newFakeOpens(), &fakeAccess{}
	access.grant(sharedSecret, sharedConfig)
	inBubbleWith(t, func(o *Options) { o.Opens, o.Reviews, o.CrossNamespace = opens, access.reviews(), true }, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(sharedSecret, "password", "p1")
		e.objects.put(sharedConfig, "CA", "c1")
		r := e.publishNew("v1", "sources", acrossSources)
		e.read(r, opens, "a")
		e.wantOpened(configMap("app"), opened.Yes)
		e.writes.set(func() error { return errFault }, nil) // so that no update can succeed
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return len(e.status().Withdrawn) > 0 })
		e.rest()
		e.wantOpened(configMap("app"), opened.Yes)
		if s := e.status(); s.OpenState(sharedSecret) != opened.Unknown {
			t.Errorf("the refused object is opened: %s", s.OpenState(sharedSecret))
		}
		e.writes.set(nil, nil)
		e.read(r, opens, "app.env")
		e.wantOpened(sharedConfig, opened.Yes)
		e.wantNoErrors()
	})
}

// wantNoErrors fails the test if the log has an error of receipts.
func (e *env) wantNoErrors() {
	e.Helper()
	for _, text := range []string{"Can't keep receipts", "Can't end the watch"} {
		e.wantLines(0, text)
	}
}

// TestAnOpenBesideASwitch: an open of the last generation counts for a file that was linked, and for no other.
func TestAnOpenBesideASwitch(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
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
		opens.setOnID(func() error { return opens.open(old) })
		e.update(app, "a", "3", "b", "2")
		opens.setOnID(nil)
		e.read(r, opens)
		e.wantOpened(app, opened.No, "a", "b")
	})
}

// TestTheEndKeepsReceipts: the next process knows what was opened just before this one ended.
func TestTheEndKeepsReceipts(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		r := e.publishApp()
		e.open(r, opens, "a")
		e.halt()
		opens.forget()
		e.restart()
		e.rest()
		e.wantOpened(configMap("app"), opened.Yes)
	})
}

// TestAnOpenOfALostVolume: work that finds the mount gone makes the volume examine its target again.
func TestAnOpenOfALostVolume(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		r := e.publishApp()
		e.open(r, opens, "a")
		e.mounts.vanish(r.Target)
		if err := opens.Drain(time.Minute); err != nil {
			t.Fatal(err)
		}
		e.rest()
		if v := e.lookup(r.VolumeID); v != nil {
			t.Error("the volume is still known")
		}
	})
}

// TestReceiptsOfAPinnedVolume: receipts are written although the files never are.
func TestReceiptsOfAPinnedVolume(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		r := e.publishApp("configMap", "app", "updatePolicy", "Pinned")
		e.read(r, opens, "a")
		e.wantOpened(configMap("app"), opened.Yes)
	})
}

// TestOpenedBeforeItWasWritten: after the clock was set back, an object counts as opened at once. Files of an earlier process have the times of
// the real clock here, which is far ahead.
func TestOpenedBeforeItWasWritten(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, o *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.publishNew("v1")
		e.read(r, opens, "a", "b")
		e.rest()
		e.halt()
		opens.forget()
		e.restart()
		e.update(app, "a", "1", "b", "2")
		o.opened = nil
		e.read(r, opens, "b")
		e.wantOpened(app, opened.Yes)
		if len(o.opened) != 1 || o.opened[0] != 0 {
			t.Errorf("heard %v, want once 0", o.opened)
		}
	})
}

// TestWhatCanGetNoReceipt is not reported: a versions file, and superseded files that somebody may have open.
func TestWhatCanGetNoReceipt(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		r := e.publishApp("sources", "[{configMap: {name: app}}, {versions: {path: v}}]")
		if !opens.isIgnored(e.realPath(r, "v")) || opens.isIgnored(e.realPath(r, "a")) {
			t.Error("the file of versions is not ignored, or the other one is")
		}
		held, err := os.Open(e.realPath(r, "a"))
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		e.objects.put(configMap("app"), "a", "2")
		e.rest()
		after(3 * time.Second)
		e.rest()
		if !opens.isIgnored(filepath.Join("/proc/self/fd", fmt.Sprint(held.Fd()))) {
			t.Error("the superseded file is not ignored")
		}
	})
}
