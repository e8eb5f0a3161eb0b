package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/probe/events"
)

// watched is a volume, and what watches of its file a, of the directory of its files and of its own directory have seen.
type watched struct {
	*events.Watch
	*harness.Volume
	seen []string
}

// watchEvents watches a volume, until the end of the test.
func (n *node) watchEvents(v *harness.Volume) *watched {
	n.t.Helper()
	w, err := events.New(n.Target(v), "a", "..data", ".")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := w.Close(); err != nil {
			n.t.Error(err)
		}
	})
	return &watched{Watch: w, Volume: v}
}

// saw returns nil if these events were seen, and no others. Their order is not compared, because kernels list directories differently.
func (w *watched) saw(name string, want []string) error {
	next, err := w.Next()
	if err != nil {
		return err
	}
	w.seen = append(w.seen, next...)
	if !slices.Equal(slices.Sorted(slices.Values(w.seen)), slices.Sorted(slices.Values(want))) {
		return fmt.Errorf("%s: watches saw\n%s\nwant\n%s", name, strings.Join(w.seen, "\n"), strings.Join(want, "\n"))
	}
	return nil
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
	n := newAcrossNode(t)
	all := map[string]*watched{}
	for _, name := range []string{"open", "this", "other"} {
		n.configMap(name, map[string]string{"a": "1", "b": "1"})
		all[name] = n.watchEvents(n.published(name))
	}
	n.put("secret", "db", n.canary())
	n.configMap("own", map[string]string{"b": "1"})
	revoke := allow(t, n.source, readers("secret", "db"), account(n.namespace, "web"))
	shown := n.volume(map[string]string{"sources": fmt.Sprintf(
		"[{configMap: {name: own}}, {secret: {name: db, namespace: %s, items: [{key: key, path: a}]}}]", n.source)})
	shown.ServiceAccount = "web"
	n.publishes(shown, soon)
	all["withdrawal"] = n.watchEvents(shown)

	n.reads(n.Target(all["open"].Volume) + "/a")
	n.configMap("this", map[string]string{"a": "2", "b": "1"})
	n.configMap("other", map[string]string{"a": "1", "b": "2"})
	revoke()

	want := watcherEvents()
	// Twice, so that events that come late to one are seen, too: those of the others come meanwhile.
	for range 2 {
		for name, w := range all {
			harness.Eventually(t, withdrawn, func() error { return w.saw(name, want[name]) })
		}
	}
	for _, w := range all {
		n.mustUnpublish(w.Volume)
	}
	n.wantNothingLeft()
}
