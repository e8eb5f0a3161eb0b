package receipts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/probe/events"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// sees watches the file a of a volume, the directory of its files and its own directory, until the end of the test. It returns a function
// whose error is nil if just these events were seen. Their order is not compared, because kernels list directories differently.
func sees(n *world.Node, v *harness.Volume, want []string) func() error {
	n.T.Helper()
	w := must.Get(events.New(n.Target(v), "a", "..data", "."))(n.T)
	n.T.Cleanup(func() { must.Do(n.T, w.Close()) })
	var seen []string
	slices.Sort(want)
	return func() error {
		next, err := w.Next()
		if err != nil {
			return err
		}
		if seen = append(seen, next...); !slices.Equal(slices.Sorted(slices.Values(seen)), want) {
			return fmt.Errorf("the watches of %v saw\n%s\nwant\n%s", v.Attributes, strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
		return nil
	}
}

// watcherEvents are the events of each case.
func watcherEvents() map[string][]string {
	change := []string{
		". CREATE ..TIME", ". ATTRIB ..TIME", ". MOVED_FROM ..TIME", ". MOVED_TO ..TIME",
		". CREATE ..data_tmp", ". MOVED_FROM ..data_tmp", ". MOVED_TO ..data", ". DELETE ..TIME",
		"..data DELETE a", "..data DELETE b", "..data DELETE_SELF",
	}
	return map[string][]string{
		"open": {"a ATTRIB", "..data ATTRIB a"},
		"this": append(slices.Clone(change), "a ATTRIB", "a DELETE_SELF"),
		// The file is linked into the new generation, and its name in the old one is removed.
		"other":      append(slices.Clone(change), "a ATTRIB", "a ATTRIB"),
		"withdrawal": append(slices.Clone(change), "a ATTRIB", "a DELETE_SELF", ". DELETE a"),
	}
}

// TestWatchers measures what docs/updates.md#what-a-watcher-sees says: the events of a first open, of a change of the watched key, of
// a change of another key, and of a withdrawal. None of them reads the files, because a read is a first open.
func TestWatchers(t *testing.T) {
	needsReceipts(t)
	t.Parallel()
	n := lab.NewAcrossNode(t)
	want, all, volumes := watcherEvents(), []func() error{}, []*harness.Volume{}
	for _, name := range []string{"open", "this", "other"} {
		n.ConfigMap(name, map[string]string{"a": "1", "b": "1"})
		v := n.Published(name)
		all, volumes = append(all, sees(n, v, want[name])), append(volumes, v)
	}
	shown, revoke := n.Consented("Atomic")
	all, volumes = append(all, sees(n, shown, want["withdrawal"])), append(volumes, shown)

	reads(n, n.Target(volumes[0])+"/a")
	n.ConfigMap("this", map[string]string{"a": "2", "b": "1"})
	n.ConfigMap("other", map[string]string{"a": "1", "b": "2"})
	revoke()

	// Twice, so that events that come late to one are seen, too: those of the others come meanwhile.
	for range 2 {
		for _, saw := range all {
			harness.Eventually(t, world.Soon, saw)
		}
	}
	n.UnpublishAll(volumes)
}
