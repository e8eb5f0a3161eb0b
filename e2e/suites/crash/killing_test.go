package crash

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// killing runs one operation on a volume after another, and kills the plugin in the middle of each. The plugin is built without the race
// detector: it is started over and over.
type killing struct {
	*world.Node
	*supervise.Supervisor
	// disk shows the kubelet's directory without what is mounted below it.
	disk  string
	shape *shape
	tally *tally
	// generation is what the objects are at, and versions what the API server calls it.
	generation int
	versions   []string
}

// tally is what was killed where, by tests that may run at once.
type tally struct {
	// reads counts those that found all that there has to be.
	reads atomic.Int64
	// kills has each operation and name of the call at which a process was killed.
	kills sync.Map
}

// newKilling starts a node and makes the shape's objects.
func newKilling(t *testing.T, s *shape, sum *tally) *killing {
	t.Helper()
	k := &killing{Supervisor: supervise.New(), shape: s, tally: sum}
	// The first to be registered is the last to run: once the plugin has ended.
	t.Cleanup(func() { must.Do(t, k.Supervisor.Close()) })
	k.Node = lab.NewNodeWith(t, harness.PluginOptions{
		Binary: must.Get(lab.Plain())(t), Kubeconfig: lab.Kubeconfig, Args: []string{"-v=4"}, BeforeFork: k.BeforeFork,
	})
	fd := must.Get(unix.OpenTree(unix.AT_FDCWD, k.KubeletDir(), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))(t)
	t.Cleanup(func() { unix.Close(fd) })
	k.disk = fmt.Sprintf("/proc/self/fd/%d", fd)
	for _, o := range s.objects {
		o.padding = k.Canary()
	}
	k.change()
	return k
}

// wantBareDisk checks that below the kubelet's directory the disk holds nothing but directories and the kubelet's own files, and nothing at
// all where volumes are mounted.
func (k *killing) wantBareDisk() {
	k.T.Helper()
	err := filepath.WalkDir(k.disk+"/.", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile
		case err != nil:
			return err
		case filepath.Base(filepath.Dir(path)) == "mount", !entry.IsDir() && entry.Name() != "vol_data.json":
			return fmt.Errorf("found %s", path)
		}
		return nil
	})
	if err != nil {
		k.T.Errorf("on the disk, below the mounts: %v", err)
	}
}

// changed returns when the directory that a volume is mounted on was last changed: that tells also of what came into it for a moment only.
func (k *killing) changed(v *harness.Volume) time.Time {
	k.T.Helper()
	path := must.Get(filepath.Rel(k.KubeletDir(), k.Target(v)))(k.T)
	return must.Get(os.Stat(filepath.Join(k.disk, path)))(k.T).ModTime()
}

// change brings the objects to the next generation.
func (k *killing) change() {
	k.T.Helper()
	k.generation++
	k.versions = nil
	for _, o := range k.shape.objects {
		k.versions = append(k.versions, k.PutObject(o.kind, o.name, o.data(k.generation)).GetResourceVersion())
	}
}

func (k *killing) newVolume() *harness.Volume { return k.Volume(k.shape.attributes()) }

// current returns nil once the volume shows the present generation of all objects, and nothing else. InPlace keeps the files of keys that
// have gone, empty.
func (k *killing) current(v *harness.Volume) error {
	files, err := harness.Files(k.Target(v))
	if err != nil {
		return err
	}
	maps.DeleteFunc(files, func(_, text string) bool { return k.shape.strategy == "InPlace" && text == "" })
	generations, err := k.shape.read(files)
	if err == nil && slices.Min(generations) < k.generation {
		err = fmt.Errorf("the files are of generations %d, want %d", generations, k.generation)
	}
	return err
}

func (k *killing) becomesCurrent(v *harness.Volume) {
	k.T.Helper()
	harness.Eventually(k.T, world.Soon, func() error { return k.current(v) })
}

// settled returns nil once the volume is current and nothing is left to do for it: the volume itself says so, and the generation before is
// gone.
func (k *killing) settled(v *harness.Volume) error {
	if err := k.current(v); err != nil {
		return err
	}
	record, err := harness.Record(k.Target(v))
	if err != nil {
		return err
	}
	for _, version := range k.versions {
		if !strings.Contains(record, " "+version+"\n") {
			return fmt.Errorf("the record does not name resourceVersion %s", version)
		}
	}
	return k.Pruned(v)
}

// watch has a witness read the volume. With InPlace a file may be torn by a kill, so nobody reads it then.
func (k *killing) watch(v *harness.Volume, mayVanish bool) (finish func()) {
	k.T.Helper()
	if k.shape.strategy == "InPlace" {
		return func() {}
	}
	w := startWitness(k.T, harness.Scaled(5*time.Millisecond, time.Millisecond),
		&witness{shape: k.shape, target: k.Target(v), mayVanish: mayVanish, reads: &k.tally.reads})
	return func() {
		k.T.Helper()
		if err := w.finish(); err != nil {
			k.T.Errorf("a reader saw: %v", err)
		}
	}
}

// operation does something with a volume while the plugin may be killed at any call.
type operation struct {
	name string
	do   func(*killing, *harness.Volume) error
	// published says that the volume is before, and stays that it is afterwards.
	published, stays bool
}

func operations() []operation {
	publish := func(k *killing, v *harness.Volume) error { return k.Publish(k.T.Context(), v) }
	return []operation{
		{name: "publish", do: publish, stays: true},
		// The pod is deleted while the plugin is down: the kubelet will not publish again.
		{name: "first publish", do: publish},
		{name: "update", do: (*killing).update, published: true, stays: true},
		{name: "unpublish", do: func(k *killing, v *harness.Volume) error { return k.Unpublish(k.T.Context(), v) }, published: true},
	}
}

// update changes the objects, and waits until the plugin has nothing left to do or is killed.
func (k *killing) update(v *harness.Volume) error {
	k.T.Helper()
	k.change()
	harness.Eventually(k.T, world.Soon, func() error {
		if k.Process().Ended() {
			return nil
		}
		return k.settled(v)
	})
	return nil
}

// run does the operation on a new volume while the plugin may be killed, restarts and mends. It returns the calls that the operation made,
// and whether the plugin was killed.
func (o operation) run(k *killing, decide supervise.Decide) (calls []string, killed bool) {
	k.T.Helper()
	v := k.newVolume()
	if o.published {
		k.MustPublish(v)
		k.becomesCurrent(v)
	}
	finish := k.watch(v, !o.stays)
	k.Arm(decide)
	err := o.do(k, v)
	calls, killed = k.Disarm()
	if err != nil && !killed {
		k.T.Fatalf("the plugin has not been killed, and said: %v", err)
	}
	if killed {
		k.Crash()
	}
	if o.stays {
		if o.published {
			k.becomesCurrent(v)
		}
		k.MustPublish(v) // as the kubelet may at any time
		k.becomesCurrent(v)
		k.change()
		k.becomesCurrent(v)
		harness.Eventually(k.T, world.Soon, func() error { return k.Pruned(v) })
		k.WantMounts(1)
		k.wantBareDisk()
		finish()
	}
	if o.stays || killed || !o.published {
		k.MustUnpublish(v)
	}
	if !o.stays {
		finish()
	}
	k.wantBareDisk()
	k.WantNothingLeft()
	return calls, killed
}
