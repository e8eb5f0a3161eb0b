package publisher

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/mount"
)

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
		{"pod UID that is a dot", edit(func(r *record) {
			r.Pod.UID = "."
			r.Target = strings.Replace(r.Target, "uid-v1/volumes", "volumes", 1)
		}), "pod UID: Invalid value"},
		{"target that is an emptyDir", edit(func(r *record) {
			r.Target = strings.Replace(r.Target, "~csi", "~empty-dir", 1)
		}), "target: Invalid value"},
		{"target outside", edit(func(r *record) { r.Target = "/etc" }), `Invalid value: \"/etc\"`},
		{"pod UID that climbs", edit(func(r *record) {
			r.Pod.UID = "../uid-v2"
			r.Target = strings.Replace(r.Target, "uid-v1", "uid-v2", 1)
		}), "pod UID: Invalid value"},
		{"target of another pod", edit(func(r *record) {
			r.Target = strings.Replace(r.Target, "uid-v1", "uid-v2", 1)
		}), "target: Invalid value"},
		{"target that climbs", edit(func(r *record) {
			r.Target = filepath.Dir(r.Target) + "/../../../../uid-v2/volumes/x"
		}), "target: Invalid value"},
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

// A path that a symbolic link leads away is no path of ours.
func TestARecordWhoseTargetLeadsElsewhereIsSetAside(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.halt()
		e.mounts.failAt("Check", mount.ErrOutside)
		e.restart()
		if got := e.stateFiles(); !slices.Equal(got, []string{"v1.json.damaged"}) || len(e.objects.registrations()) > 0 || e.used() != 0 {
			t.Errorf("left: %v", got)
		}
		if lines := e.logs.with("setting it aside", `record="v1.json"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		if e.mounts.count("Unmount") > 0 {
			t.Error("something was unmounted")
		}
	})
}

// What stands in the place of a record may be no file at all.
func TestRecordsThatAreNoFiles(t *testing.T) {
	directory := func(path string) error { return os.MkdirAll(filepath.Join(path, "not", "empty"), 0o755) }
	for _, test := range []struct {
		name string
		make func(path string) error
		log  string
	}{
		{"directory", directory, "must be a regular file"},
		{"named pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }, "must be a regular file"},
		{"link to itself", func(path string) error { return os.Symlink(filepath.Base(path), path) }, "must be a regular file"},
		{"link to a record", func(path string) error { return os.Symlink("v9.json", path) }, "must be a regular file"},
		{"link to the outside", func(path string) error { return os.Symlink("/etc/passwd", path) }, "must be a regular file"},
		{"endless", func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) }, "has 1099511627776 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.halt()
				path := e.recordPath("v1")
				if err := errors.Join(os.Remove(path), test.make(path), directory(path+".tmp"), directory(path+".damaged")); err != nil {
					t.Fatal(err)
				}
				e.restart()
				if lines := e.logs.with("setting it aside", `record="v1.json"`, test.log); len(lines) != 1 {
					t.Errorf("logged %q", e.logs.with("setting it aside"))
				}
				if got := e.stateFiles(); !slices.Equal(got, []string{"v1.json.damaged"}) {
					t.Errorf("the state directory has %v", got)
				}
				e.publish(r) // the kubelet's next call takes it over
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "2")
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}
