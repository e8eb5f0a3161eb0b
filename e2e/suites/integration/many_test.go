package integration

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// TestRestartWithManyVolumes kills the plugin, changes what its volumes show, each of an object of its own, and starts
// it again: all is current, and not a mount was touched for it.
func TestRestartWithManyVolumes(t *testing.T) {
	const readers = 4
	count := harness.Scaled(120, 500)
	// What makes, shows or removes a mount; all other calls are as fast as ever.
	n := newSupervisedNode(t, []string{"fsmount", "move_mount", "mount", "umount2"}, "-v=2")
	things, volumes, seen := make([]*thing, count), make([]*harness.Volume, count), &atomic.Int64{}
	var witnesses [readers][]*witness
	for i := range count {
		things[i] = n.newThing([]string{"configMap", "secret"}[i%2], fmt.Sprint("app-", i))
		s := &shape{name: things[i].name, strategy: "Atomic", objects: []*object{things[i].object}}
		volumes[i] = n.volume(s.attributes())
		n.mustPublish(volumes[i])
		witnesses[i%readers] = append(witnesses[i%readers], newWitness(s, n.Target(volumes[i]), false, seen))
	}
	before := n.mountIDs()
	if len(before) != count {
		t.Fatalf("%d mounts, want %d", len(before), count)
	}
	n.mustKill()
	for i, o := range things { // every fourth of either kind stays as it is; a volume keeps the files of what is deleted
		if change := i / 2 % 4; change == 1 {
			o.write()
		} else if change > 1 {
			o.delete()
			if change == 3 {
				o.write()
			}
		}
	}
	var readings []*reading
	for _, w := range witnesses { // which leave the machine to the plugin, most of the time
		readings = append(readings, startReading(t, 10*time.Millisecond, w...))
	}
	n.Arm(supervise.CountOnly)
	begin := time.Now()
	n.mustStart()
	serving := time.Since(begin)
	n.each(volumes, func(i int) error {
		for key, want := range things[i].data(things[i].generation) {
			if got, err := n.content(volumes[i], key); err != nil || got != want {
				return fmt.Errorf("%s holds %q, %w, want %q", key, got, cmpErr(err), want)
			}
		}
		return nil
	})
	t.Logf("%d volumes: serving after %s, all current %s after the exec", count, serving, time.Since(begin)) // make bench judges the time
	n.each(volumes, func(i int) error { return n.pruned(volumes[i]) })
	for _, r := range readings {
		if err := r.finish(); err != nil {
			t.Errorf("a reader saw: %v", err)
		}
	}
	if seen.Load() == 0 {
		t.Error("the readers saw nothing")
	}
	calls, _ := n.Disarm()
	t.Logf("%d reads; calls: %v", seen.Load(), calls)
	// By fsmount the plugin probes at its start what the kernel grants.
	if len(calls) == 0 || slices.ContainsFunc(calls, func(c supervise.Call) bool { return c.Name != "fsmount" }) {
		t.Errorf("in the start and after it: %v, want fsmount alone", calls)
	}
	if after := n.mountIDs(); !maps.Equal(before, after) {
		t.Error("the ids of the mounts are not what they were")
	}
	n.wantBareDisk()
}

// thing is an object that is written and deleted, each time it comes back at its next generation. It belongs to one
// goroutine.
type thing struct {
	*object
	node       *node
	generation int
	exists     bool
}

func (n *node) newThing(kind, name string) *thing {
	n.t.Helper()
	o := &thing{object: &object{kind: kind, name: name, padding: n.canary()}, node: n}
	o.write()
	return o
}

// write changes the object, or creates it.
func (o *thing) write() {
	o.node.t.Helper()
	o.exists = true
	o.generation++
	o.node.putObject(o.kind, o.name, o.data(o.generation))
}

func (o *thing) delete() {
	o.node.t.Helper()
	if o.exists {
		o.exists = false
		o.node.removeObject(o.kind, o.name)
	}
}

func (n *node) mountIDs() map[string]string {
	n.t.Helper()
	mounts, err := n.VolumeMounts()
	if err != nil {
		n.t.Fatal(err)
	}
	ids := make(map[string]string, len(mounts))
	for _, mount := range mounts {
		ids[mount.Target] = mount.ID
	}
	return ids
}
