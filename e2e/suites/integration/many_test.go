package integration

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestRestartWithManyVolumes kills the plugin, changes what its volumes show, each of an object of its own, and starts
// it again: all is current, and not a mount was touched for it.
func TestRestartWithManyVolumes(t *testing.T) {
	n := newPlain(t)
	kinds, states := []string{"configMap", "secret"}, make([]map[string]string, harness.Scaled(120, 500))
	name := func(i int) string { return fmt.Sprint("app-", i) }
	write := func(i int) {
		states[i] = map[string]string{"key": n.canary()}
		n.putObject(kinds[i%2], name(i), states[i])
	}
	volumes := make([]*harness.Volume, len(states))
	for i := range states {
		write(i)
		volumes[i] = n.volume(map[string]string{kinds[i%2]: name(i)})
		n.mustPublish(volumes[i])
		root, err := os.Open(n.Target(volumes[i])) // no other mount gets its id as long as this is open
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { root.Close() })
	}
	before := n.mountIDs()
	n.wantMounts(len(states))
	n.mustKill()
	for i := range states { // every fourth of either kind stays as it is; a volume keeps the files of what is deleted
		change := i / 2 % 4
		if change > 1 {
			n.removeObject(kinds[i%2], name(i))
		}
		if change == 1 || change == 3 {
			write(i)
		}
	}
	n.mustStart() // make bench judges the time
	n.each(volumes, func(i int) error { return errors.Join(n.showsJust(volumes[i], states[i]), n.pruned(volumes[i])) })
	if after := n.mountIDs(); !maps.Equal(before, after) {
		t.Error("the ids of the mounts are not what they were")
	}
	n.unpublishAll(volumes)
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
