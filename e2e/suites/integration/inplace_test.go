package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// bind mounts one file of a volume elsewhere, as the kubelet does for a subPath: it
// resolves all links first. It returns a reader of what shows there.
func (n *node) bind(v *harness.Volume, path string) (read func() (string, error)) {
	n.t.Helper()
	file, err := filepath.EvalSymlinks(filepath.Join(n.Target(v), path))
	if err != nil {
		n.t.Fatal(err)
	}
	at := filepath.Join(n.t.TempDir(), "subpath")
	if err := errors.Join(os.WriteFile(at, nil, 0o644), unix.Mount(file, at, "", unix.MS_BIND, "")); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
	return func() (string, error) {
		data, err := os.ReadFile(at)
		return string(data), err
	}
}

// shows waits until a bound file holds a value.
func (n *node) shows(read func() (string, error), want string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		if got, err := read(); err != nil || got != want {
			return fmt.Errorf("the file holds %q, %v, want %q", got, err, want)
		}
		return nil
	})
}

// With writeStrategy: InPlace who has mounted a single file sees it change, also after
// a restart of the plugin, also when its key was gone for a while.
func TestInPlace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	first, second, third := n.canary(), n.canary()+n.canary(), n.canary()[:20]
	set := func(value string) { n.configMap("app", map[string]string{"key": value, "stays": "1"}) }
	set(first)
	inPlace := n.volume(map[string]string{"configMap": "app", "writeStrategy": "InPlace"})
	atomic := n.short("app")
	n.mustPublish(inPlace)
	n.mustPublish(atomic)
	read, stale := n.bind(inPlace, "key"), n.bind(atomic, "key")
	generation, err := os.Readlink(filepath.Join(n.Target(inPlace), "..data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{second, third, "", first} {
		set(value)
		n.shows(read, value)
		n.arrives(inPlace, "key", value, soon)
		n.arrives(atomic, "key", value, soon)
		n.shows(stale, first)
	}
	n.configMap("app", map[string]string{"stays": "1", "new": "2"})
	n.shows(read, "")
	n.arrives(inPlace, "new", "2", soon)
	n.vanishes(atomic, "key", soon)
	n.wantContent(inPlace, "key", "")

	n.mustKill()
	n.configMap("app", map[string]string{"stays": "2", "key": second})
	n.mustStart()
	n.shows(read, second)
	n.arrives(inPlace, "stays", "2", soon)
	if now, err := os.Readlink(filepath.Join(n.Target(inPlace), "..data")); err != nil || now != generation {
		t.Errorf("..data points at %s, %v, and did at %s", now, err, generation)
	}
	n.mustUnpublish(atomic)
	if err := n.Unpublish(t.Context(), inPlace); err != nil {
		t.Error(err)
	}
}

func TestKeysComeAndGo(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stays := n.canary()
	n.configMap("app", map[string]string{"stays": stays, "goes": n.canary()})
	v := n.short("app")
	n.mustPublish(v)

	comes := n.canary()
	n.configMap("app", map[string]string{"stays": stays, "comes": comes})
	n.arrives(v, "comes", comes, soon)
	n.vanishes(v, "goes", soon)
	n.configMap("app", nil)
	n.vanishes(v, "comes", soon)
	n.vanishes(v, "stays", soon)
	if files, err := harness.Files(n.Target(v)); err != nil || len(files) != 0 {
		t.Errorf("files of an empty object = %v, %v, want none", files, err)
	}
}
