package publisher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// Two processes with the same volumes would remove each other's files: the second waits
// for the end of the first.
func TestASecondProcessWaits(t *testing.T) {
	inBubble(t, func(e *env) {
		// A lock that is there may also be that of an earlier part of the test.
		if err := e.p.Restore(e.ctx); err != nil {
			t.Fatal(err)
		}
		next, err := New(e.opts)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(e.ctx)
		ended := make(chan error, 1)
		go func() { ended <- next.Restore(ctx) }()
		after(time.Minute)
		e.wantWaiting(ended)
		if lines := e.logs.with("Another process has the state directory"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		go func() { ended <- next.Restore(e.ctx) }()
		after(time.Minute)
		e.wantWaiting(ended)
		e.halt()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// A state directory that is removed comes back with the next record, for this process
// alone.
func TestTheStateDirectoryIsRemoved(t *testing.T) {
	inBubble(t, func(e *env) {
		if err := e.p.Restore(e.ctx); err != nil {
			t.Fatal(err)
		}
		e.objects.put(configMap("app"), "a", "1")
		r, other := e.request("v1"), e.request("v2")
		e.publish(r)
		if err := os.RemoveAll(e.opts.StateDir); err != nil {
			t.Fatal(err)
		}
		e.publish(other)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
		if got := strings.Join(e.stateFiles(), " "); got != "v1.json v2.json" {
			t.Errorf("the state directory holds %q", got)
		}
		next, err := New(e.opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := next.records.tryLock(); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("the new directory is not locked: %v", err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

// The records of volumes that nothing changes come back too.
func TestRecordsComeBack(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(configMap("idle"), "b", "1")
		r, idle := e.request("v1"), e.request("v2", "configMap", "idle")
		e.publish(r)
		e.publish(idle)
		if err := os.RemoveAll(e.opts.StateDir); err != nil {
			t.Fatal(err)
		}
		e.objects.put(configMap("app"), "a", "2")
		after(2 * testResync)
		e.settle()
		if got := strings.Join(e.stateFiles(), " "); got != "v1.json v2.json" {
			t.Errorf("the state directory holds %q", got)
		}
		e.restart()
		e.objects.put(configMap("idle"), "b", "2")
		e.settle()
		e.wantFiles(idle, "b", "2")
	})
}

// Many that find the directory gone at once make it once.
func TestTheStateDirectoryIsRemovedUnderManySaves(t *testing.T) {
	for range 50 {
		dir := filepath.Join(t.TempDir(), "state")
		records, err := openRecords(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(records.tryLock(), os.RemoveAll(dir)); err != nil {
			t.Fatal(err)
		}
		var saves sync.WaitGroup
		for i := range 16 {
			saves.Go(func() {
				if _, err := records.save(&record{VolumeID: fmt.Sprint("v", i)}); err != nil {
					t.Error(err)
				}
			})
		}
		saves.Wait()
		if names, err := records.names(t.Context()); err != nil || len(names) != 16 {
			t.Errorf("%d records, %v", len(names), err)
		}
		if err := records.close(); err != nil {
			t.Error(err)
		}
	}
}

// Where the directory can't be made again, what was there before is not lost.
func TestTheStateDirectoryIsReplacedByAFile(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		if err := errors.Join(os.RemoveAll(e.opts.StateDir), os.WriteFile(e.opts.StateDir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := e.p.Publish(e.ctx, r); err == nil || !strings.Contains(err.Error(), "make the state directory") {
			t.Errorf("got %v", err)
		}
		if err := os.Remove(e.opts.StateDir); err != nil {
			t.Fatal(err)
		}
		e.publish(r)
		if _, err := os.Stat(e.recordPath("v1")); errors.Is(err, fs.ErrNotExist) {
			t.Error("no record was written")
		}
		e.unpublish(r)
		e.wantNothing()
	})
}
