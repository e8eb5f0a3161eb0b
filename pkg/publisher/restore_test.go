package publisher

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/manager"
)

func TestARestartTakesVolumesOver(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "password", "x")
		group := int64(2000)
		r, other := e.request("v1", "configMap", "app", "defaultMode", "0400"), e.request("v2", "secret", "db")
		r.FSGroup = &group
		e.publish(r)
		e.publish(other)
		e.halt()
		e.objects.put(configMap("app"), "a", "2") // while nobody looks
		e.writes.trees = nil
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantFiles(other, "password", "x")
		if n := e.mounts.count("Create"); n != 2 {
			t.Errorf("%d file systems were made", n)
		}
		for _, tree := range e.writes.trees {
			if tree.Files[0].Path == "a" && (tree.GID != 2000 || tree.Files[0].Mode != 0o440) {
				t.Errorf("after the restart: group %d, %v", tree.GID, tree.Files[0])
			}
		}
		if e.used() != 2*pageSize {
			t.Errorf("%d bytes counted", e.used())
		}
		e.publish(r)
		e.objects.put(secret("db"), "password", "y")
		e.settle()
		e.wantFiles(other, "password", "y")
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

// A record that claims more than a volume may have leaves room for the others.
func TestARecordOfAHugeSize(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.editRecord("v1", func(r *record) { r.Size = 1 << 60 })
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.mounts.failAt("Check", errFault) // so that nobody knows better
		e.restart()
		e.mounts.failAt("Check", nil)
		e.settle()
		if e.used() != e.opts.MaxVolumeSize {
			t.Errorf("%d bytes counted", e.used())
		}
		other := e.request("v2", "secret", "db")
		e.objects.put(secret("db"), "password", "x")
		e.publish(other)
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

func TestARestartWithoutTheAPIServer(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "1")
		if e.used() != pageSize {
			t.Errorf("%d bytes counted", e.used())
		}
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.objects.failWith(configMap("app"), nil)
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}

func TestARecordOfWhatIsNoLongerMountedIsDropped(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(e *env, r Request)
	}{
		{"rebooted", func(e *env, r Request) { e.mounts.vanish(r.Target) }},
		{"another mount there", func(e *env, r Request) { e.mounts.vanish(r.Target); e.mounts.setForeign(r.Target, true) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.halt()
				test.prepare(e, r)
				e.restart()
				if left := e.stateFiles(); len(left) > 0 || len(e.objects.registrations()) > 0 || e.used() != 0 {
					t.Errorf("left: %v", left)
				}
				if lines := e.logs.with("no longer mounted", `volumeID="v1"`); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
				if e.mounts.count("Unmount") > 0 {
					t.Error("something was unmounted")
				}
			})
		})
	}
}

// If it can't be told whether it is mounted, it is served as if it were: each write
// proves the mount.
func TestARestartThatCannotLookAtAMountRetries(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.mounts.failAt("Check", errFault)
		e.mounts.failAt("Reopen", errFault)
		e.restart()
		after(retryMax)
		e.mounts.failAt("Check", nil)
		e.mounts.failAt("Reopen", nil)
		e.objects.put(configMap("app"), "a", "2")
		after(retryMax)
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestRestoreCleansTheStateDirectory(t *testing.T) {
	inBubble(t, func(e *env) {
		for _, name := range []string{"v1.json.tmp", "v2.json.damaged", "README"} {
			if err := os.WriteFile(filepath.Join(e.opts.StateDir, name), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(e.opts.StateDir, "v3.json"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := e.p.Restore(e.ctx); err != nil {
			t.Fatal(err)
		}
		want := []string{"README", "v2.json.damaged", "v3.json.damaged"}
		if got := e.stateFiles(); !slices.Equal(got, want) {
			t.Errorf("the state directory has %v, want %v", got, want)
		}
	})
}

func TestRestoreUnmountsOnlyWhatNobodyWillUnpublish(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		known, orphan, waiting := e.request("v1"), e.request("v2"), e.request("v3")
		for _, r := range []Request{known, orphan, waiting} {
			e.publish(r)
		}
		e.halt()
		for _, r := range []Request{orphan, waiting} {
			if err := os.Remove(e.recordPath(r.VolumeID)); err != nil {
				t.Fatal(err)
			}
		}
		podDir := func(r Request) string { return filepath.Join(e.opts.KubeletDir, "pods", string(r.Pod.UID)) }
		for _, r := range []Request{known, orphan} {
			if err := os.RemoveAll(podDir(r)); err != nil {
				t.Fatal(err)
			}
		}
		e.restart()
		if got := e.mounts.targets(); !slices.Equal(got, []string{known.Target, waiting.Target}) {
			t.Errorf("mounted are %v", got)
		}
		if lines := e.logs.with("Unmounted a volume whose pod is gone", `volumeID="v2"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		if lines := e.logs.with("has no record", `volumeID="v3"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestACleanUpThatFailsDoesNotStopTheStart(t *testing.T) {
	for _, method := range []string{"List", "Unmount"} {
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r, orphan := e.request("v1"), e.request("v2")
				e.publish(r)
				e.publish(orphan)
				e.halt()
				if err := errors.Join(os.Remove(e.recordPath("v2")), os.RemoveAll(filepath.Join(e.opts.KubeletDir, "pods/uid-v2"))); err != nil {
					t.Fatal(err)
				}
				e.mounts.failAt(method, errFault)
				e.restart()
				if lines := e.logs.with(errFault.Error()); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "2")
			})
		})
	}
}

func TestARestoreWithoutAStateDirectoryFails(t *testing.T) {
	e := newEnv(t, nil)
	if err := os.RemoveAll(e.opts.StateDir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(e.opts.StateDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(e.opts); err == nil || !strings.HasPrefix(err.Error(), "make the state directory: ") {
		t.Errorf("got %v", err)
	}
	if err := e.p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.p.Restore(e.ctx); err == nil {
		t.Error("no error after Close")
	}
}
