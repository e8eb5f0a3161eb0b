package publisher

import (
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
	inStoppedBubble(t, func(opts *Options) { opts.Opens, opts.Observer = opens, o }, func(e *env) {
		e.run()
		test(e, opens, o)
		e.settle()
		if n := opens.watched(); n > 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

// read opens some of a volume's files at their present paths, and waits until nothing happens any more.
func (e *env) read(r binding.Request, opens *fakeOpens, paths ...string) {
	e.Helper()
	for _, p := range paths {
		if err := opens.open(e.realPath(r, p)); err != nil {
			e.Fatal(err)
		}
	}
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
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db, items: [{key: p, path: deep/p}]}}, {versions: {path: v}}]")
		e.publish(r)
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
		e.objects.put(app, "a", "1", "b", "2")
		e.settle()
		e.wantOpened(app, opened.No, "b")
		e.wantOpened(db, opened.Yes)
		e.rest()
		e.halt()
		opens.forget()
		e.restart() // receipts are kept, but nobody saw who opened the other files
		e.rest()
		e.wantOpened(app, opened.Unknown, "b")
		e.wantOpened(db, opened.Yes)
		e.objects.put(app, "a", "2", "b", "2")
		e.settle()
		e.wantOpened(app, opened.No, "a", "b") // for the new file it is known
		e.read(r, opens, "a")
		e.wantOpened(app, opened.Unknown, "b")
		e.read(r, opens, "b")
		e.wantOpened(app, opened.Yes)
		e.wantNoErrors()
		e.unpublish(r)
		e.wantNothing()
	})
}

// TestReceiptsAfterAWithdrawal: files that a refusal removes have no receipts, and the other files keep theirs.
func TestReceiptsAfterAWithdrawal(t *testing.T) {
	opens, access := newFakeOpens(), &fakeAccess{}
	access.grant(sharedSecret, sharedConfig)
	inStoppedBubble(t, func(o *Options) { o.Opens, o.Reviews, o.CrossNamespace = opens, access.reviews(), true }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(sharedSecret, "password", "p1")
		e.objects.put(sharedConfig, "CA", "c1")
		r := e.request("v1", "sources", acrossSources)
		e.publish(r)
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
		e.unpublish(r)
	})
}

// wantNoErrors fails the test if the log has an error of receipts.
func (e *env) wantNoErrors() {
	e.Helper()
	for _, text := range []string{"Can't keep receipts", "Can't end the watch"} {
		if lines := e.logs.With(text); len(lines) > 0 {
			e.Errorf("the log has %q", lines)
		}
	}
}

// TestMissedOpensOfOtherFiles: a write in place of one file leaves it unknown whether the others were opened.
func TestMissedOpensOfOtherFiles(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.publish(r)
		e.p.OpensLost()
		e.settle()
		e.wantOpened(app, opened.Unknown, "a", "b")
		e.objects.put(app, "a", "2", "b", "1")
		e.settle()
		e.read(r, opens, "a")
		e.wantOpened(app, opened.Unknown, "b")
		e.unpublish(r)
	})
}

// TestAnOpenBesideASwitch: an open of the last generation counts for a file that was linked, and for no other.
func TestAnOpenBesideASwitch(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.request("v1")
		e.publish(r)
		for _, path := range []string{e.realPath(r, "a"), e.realPath(r, "b")} {
			if err := opens.open(path); err != nil { // the kernel has not reported this one yet
				t.Fatal(err)
			}
		}
		e.objects.put(app, "a", "1", "b", "2")
		e.settle()
		e.read(r, opens)
		e.wantOpened(app, opened.No, "b")

		// A process that opens the old file just before the switch has not opened the new one.
		e.objects.put(app, "a", "2", "b", "2")
		e.settle()
		old := e.realPath(r, "a")
		opens.set(func() { opens.onID = func() error { return opens.open(old) } })
		e.objects.put(app, "a", "3", "b", "2")
		e.settle()
		opens.set(func() { opens.onID = nil })
		e.read(r, opens)
		e.wantOpened(app, opened.No, "a", "b")
		e.unpublish(r)
	})
}

// TestTheEndKeepsReceipts: the next process knows what was opened just before this one ended.
func TestTheEndKeepsReceipts(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		if err := opens.open(e.realPath(r, "a")); err != nil {
			t.Fatal(err)
		}
		e.halt()
		opens.forget()
		e.restart()
		e.rest()
		e.wantOpened(configMap("app"), opened.Yes)
		e.unpublish(r)
	})
}

// TestAnOpenOfALostVolume: work that finds the mount gone makes the volume examine its target again.
func TestAnOpenOfALostVolume(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		if err := opens.open(e.realPath(r, "a")); err != nil {
			t.Fatal(err)
		}
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

// TestReceiptsThatCantBeHad: the files matter more.
func TestReceiptsThatCantBeHad(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		e.objects.put(configMap("app"), "a", "1")
		opens.refuses = true
		r := e.request("v1")
		e.publish(r)
		e.wantFiles(r, "a", "1")
		if o := e.status().Opened[configMap("app")]; o == nil || o.State != opened.Unsupported {
			t.Errorf("%+v", o)
		}
		e.unpublish(r)
	})
}

// TestReceiptsOfAPinnedVolume: receipts are written although the files never are.
func TestReceiptsOfAPinnedVolume(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1", "configMap", "app", "updatePolicy", "Pinned")
		e.publish(r)
		e.read(r, opens, "a")
		e.wantOpened(configMap("app"), opened.Yes)
		e.unpublish(r)
	})
}

// TestOpenedBeforeItWasWritten: after the clock was set back, an object counts as opened at once. Files of an earlier process have the times of
// the real clock here, which is far ahead.
func TestOpenedBeforeItWasWritten(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, o *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.request("v1")
		e.publish(r)
		e.read(r, opens, "a", "b")
		e.rest()
		e.halt()
		opens.forget()
		e.restart()
		e.objects.put(app, "a", "1", "b", "2")
		e.settle()
		o.opened = nil
		e.read(r, opens, "b")
		e.wantOpened(app, opened.Yes)
		if len(o.opened) != 1 || o.opened[0] != 0 {
			t.Errorf("heard %v, want once 0", o.opened)
		}
		e.unpublish(r)
	})
}
