package publisher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/opened"
)

// TestWhatCanGetNoReceipt is not reported: a versions file, and superseded files that somebody may have open.
func TestWhatCanGetNoReceipt(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {versions: {path: v}}]")
		e.publish(r)
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
		e.unpublish(r)
	})
}

// TestOpensLostBesideTheWorker: the call may come while the worker closes the receipts.
func TestOpensLostBesideTheWorker(t *testing.T) {
	e := newEnv(t, func(o *Options) { o.Opens = newFakeOpens() })
	r := e.request("v1")
	e.p.find(r.VolumeID, r.Target)
	v, closed := e.lookup("v1").vol, make(chan struct{})
	go func() { v.receipts.Close(); close(closed) }()
	runtime.Gosched() // this is no synchronisation
	e.p.OpensLost()
	<-closed
}

// TestAWriteAfterFilesThatCantBeRead: opens of its files were not seen, so they are not reported as unopened.
func TestAWriteAfterFilesThatCantBeRead(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.request("v1")
		e.publish(r)
		opens.set(func() { opens.onID = func() error { return errFault } })
		e.objects.put(app, "a", "2", "b", "1")
		e.settle()
		opens.set(func() { opens.onID = nil })
		e.objects.put(app, "a", "3", "b", "1")
		e.settle()
		e.wantOpened(app, opened.Unknown, "a", "b")
		e.unpublish(r)
	})
}

// TestARewriteWaitsForNoStorm: queued opens of other processes don't delay a rewrite in place. A file that was opened, and that the kernel
// has not reported since, can get its receipt for the new content. For other files receipts are unknown.
func TestARewriteWaitsForNoStorm(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1", "b", "1")
		r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.publish(r)
		e.read(r, opens, "a", "b")
		after(receiptTime)
		e.read(r, opens) // what was queued before they were ignored is reported
		e.read(r, opens)
		opens.set(func() { opens.slow = true })
		e.objects.put(app, "a", "2", "b", "1")
		e.rest()
		e.wantFiles(r, "a", "2", "b", "1")
		e.wantOpened(app, opened.No, "a")
		e.objects.put(app, "a", "3", "b", "1")
		e.rest()
		e.wantFiles(r, "a", "3", "b", "1")
		e.wantOpened(app, opened.Unknown, "a")
		opens.set(func() { opens.slow = false })
		e.read(r, opens, "a")
		after(receiptTime)
		e.wantOpened(app, opened.Yes)
		e.unpublish(r)
	})
}

// TestAnOpenThatIsStillQueued, from before a file had its receipt, does not count for the content after a rewrite.
func TestAnOpenThatIsStillQueued(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1")
		r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.publish(r)
		file := e.realPath(r, "a")
		if err := errors.Join(opens.open(file), opens.Drain(time.Minute), opens.open(file)); err != nil {
			t.Fatal(err)
		}
		e.rest()
		e.wantOpened(app, opened.Yes)
		e.objects.put(app, "a", "2")
		e.rest()
		e.read(r, opens) // reports what is queued
		after(receiptTime)
		e.wantOpened(app, opened.No, "a")
		e.unpublish(r)
	})
}

// TestAnOpenWhileTheFilesAreRead, after a restart, is queued before the file is ignored. It does not count for the content after a rewrite.
func TestAnOpenWhileTheFilesAreRead(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		app := configMap("app")
		e.objects.put(app, "a", "1")
		r := e.request("v1", "configMap", "app", "writeStrategy", "InPlace")
		e.publish(r)
		e.read(r, opens, "a")
		after(receiptTime)
		e.read(r, opens) // the queue was read before, so that only a later read counts
		e.read(r, opens)
		file := e.realPath(r, "a")
		e.halt()
		opens.forget()
		opens.set(func() { opens.onID = sync.OnceValue(func() error { return opens.open(file) }) })
		e.restart()
		after(time.Minute)
		e.wantOpened(app, opened.Yes)
		opens.set(func() {
			if n := len(opens.pending); n != 1 {
				t.Errorf("%d opens are queued", n)
			}
		})
		e.objects.put(app, "a", "2")
		e.rest()
		e.read(r, opens) // reports what is queued
		after(receiptTime)
		e.wantOpened(app, opened.No, "a")
		e.unpublish(r)
	})
}
