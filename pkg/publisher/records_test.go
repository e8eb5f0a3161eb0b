package publisher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/mount"
)

// What stands in the state directory and is no record never stops a start, nor does the
// start wait for it or follow it.
func TestOddEntriesOfTheStateDirectory(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside.json")
	if err := os.WriteFile(outside, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, entry, left string
		make              func(path string) error
		log               string
	}{
		{"directory", "x.json", "x.json.damaged", func(path string) error { return os.Mkdir(path, 0o700) }, "must be a regular file"},
		{"pipe", "x.json", "x.json.damaged", func(path string) error { return unix.Mkfifo(path, 0o600) }, "must be a regular file"},
		{"link", "x.json", "x.json.damaged", func(path string) error { return os.Symlink(outside, path) }, "must be a regular file"},
		{"link inside", "x.json", "x.json.damaged", func(path string) error { return os.Symlink("v9.json", path) }, "must be a regular file"},
		{"huge file", "x.json", "x.json.damaged", func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		}, "has 1099511627776 bytes"},
		{"directory of a half-written record", "x.json.tmp", "x.json.tmp", func(path string) error {
			return os.MkdirAll(path+"/y", 0o700)
		}, "can't be removed"},
		{"half-written record", "x.json.tmp", "", func(path string) error { return os.WriteFile(path, nil, 0o600) }, ""},
		{"something else", "notes", "notes", func(path string) error { return os.WriteFile(path, nil, 0o600) }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v9")
				e.publish(r)
				e.halt()
				if err := test.make(filepath.Join(e.opts.StateDir, test.entry)); err != nil {
					t.Fatal(err)
				}
				e.restart()
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "2")
				want := append([]string{"v9.json"}, strings.Fields(test.left)...)
				slices.Sort(want)
				if got := e.stateFiles(); !slices.Equal(got, want) {
					t.Errorf("the state directory holds %q, want %q", got, want)
				}
				if lines := e.logs.with(`record="`+test.entry+`"`, test.log); (test.log != "") != (len(lines) == 1) {
					t.Errorf("logged %q", lines)
				}
			})
		})
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "mine" {
		t.Errorf("the file outside is %q, %v", text, err)
	}
}

// A record that leads out of the kubelet's directory is kept for a person to see.
func TestARecordBehindALinkIsSetAside(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.halt()
		e.mounts.failAt("Check", mount.ErrOutside)
		e.restart()
		if got := strings.Join(e.stateFiles(), " "); got != "v1.json.damaged" {
			t.Errorf("the state directory holds %q", got)
		}
		if lines := e.logs.with("setting it aside", "outside of the kubelet's directory"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		if e.mounts.count("Unmount") > 0 || len(e.objects.registrations()) > 0 {
			t.Error("the volume was not left alone")
		}
	})
}

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
