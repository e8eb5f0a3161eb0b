package publisher

import (
	"encoding/json"
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

// Records that can't be used never stop a start, and are kept for a person to see.
func TestBadRecordsAreSetAside(t *testing.T) {
	edit := func(change func(r *record)) func(t *testing.T, e *env, r *record) []byte {
		return func(t *testing.T, _ *env, r *record) []byte {
			change(r)
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
	}
	for _, test := range []struct {
		name string
		make func(t *testing.T, e *env, r *record) []byte
		log  string
	}{
		{"torn", func(t *testing.T, e *env, r *record) []byte {
			text := edit(func(*record) {})(t, e, r)
			return text[:len(text)/2]
		}, "decode record v1.json"},
		{"empty", func(*testing.T, *env, *record) []byte { return nil }, "decode record v1.json"},
		{"zeros", func(*testing.T, *env, *record) []byte { return make([]byte, 100) }, "decode record v1.json"},
		{"null", func(*testing.T, *env, *record) []byte { return []byte("null") }, "version: Unsupported value: 0"},
		{"field of a later version", func(t *testing.T, e *env, r *record) []byte {
			text := edit(func(*record) {})(t, e, r)
			return []byte(strings.Replace(string(text), `"spec":{`, `"spec":{"later":true,`, 1))
		}, `json: unknown field`},
		{"foreign version", edit(func(r *record) { r.Version = 2 }), "version: Unsupported value: 2"},
		{"wrong name", edit(func(r *record) { r.VolumeID = "v2" }), "must be the file's name"},
		{"name that climbs", edit(func(r *record) { r.VolumeID = "../v1" }), "must be the file's name"},
		{"no pod", edit(func(r *record) { r.Pod.UID = "" }), "pod: Required value"},
		{"no spec", edit(func(r *record) { r.Spec = nil }), "spec.sources: Required value"},
		{"no sources", edit(func(r *record) { r.Spec.Sources = nil }), "spec.sources: Required value"},
		{"negative size", edit(func(r *record) { r.Size = -1 }), "size: Invalid value: -1"},
		{"target outside", edit(func(r *record) { r.Target = "/etc" }), `Invalid value: \"/etc\"`},
		{"pod UID that climbs", edit(func(r *record) {
			r.Pod.UID = "../uid-v2"
			r.Target = strings.Replace(r.Target, "uid-v1", "uid-v2", 1)
		}), "pod UID: Invalid value"},
		{"target of another pod", edit(func(r *record) {
			r.Target = strings.Replace(r.Target, "uid-v1", "uid-v2", 1)
		}), "must be a clean path below"},
		{"target that climbs", edit(func(r *record) {
			r.Target = filepath.Dir(r.Target) + "/../../../../uid-v2/volumes/x"
		}), "must be a clean path below"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r, good := e.request("v1"), e.request("v9")
				e.publish(r)
				e.publish(good)
				e.halt()
				bad := test.make(t, e, e.record("v1"))
				if err := os.WriteFile(e.recordPath("v1"), bad, 0o600); err != nil {
					t.Fatal(err)
				}
				e.restart()
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(good, "a", "2") // the others are not concerned
				e.wantFiles(r, "a", "1")    // and its mount stays, for its pod
				if lines := e.logs.with("setting it aside", `record="v1.json"`, test.log); len(lines) != 1 {
					t.Errorf("logged %q", e.logs.with("setting it aside"))
				}
				kept, err := os.ReadFile(e.recordPath("v1") + ".damaged")
				if err != nil || string(kept) != string(bad) {
					t.Errorf("kept %q, %v", kept, err)
				}
				e.publish(r) // the kubelet's next call takes it over
				e.settle()
				e.wantFiles(r, "a", "2")
				e.unpublish(r)
				e.unpublish(good)
				e.wantNothing()
			})
		})
	}
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
