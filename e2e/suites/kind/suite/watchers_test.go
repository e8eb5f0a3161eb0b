package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestWatchers measures the kubelet's column of docs/updates.md#what-a-watcher-sees, by a change of another key than that of the watched file.
// The suite receipts measures refvol's.
func TestWatchers(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.setConfigMap("settings", object{"a": "1", "b": "1"})
	spec := newPod("watcher", native("native", "settings"))
	spec.Spec.Containers[0].Args = []string{"events", "a,..data,.", mountDir + "native"}
	p := n.start(spec)
	wantEvents := func(want ...string) { // in any order, and no others
		t.Helper()
		slices.Sort(want)
		eventually(t, nativeTimeout, "the events of a watch", func(ctx context.Context) error {
			log, err := p.log(ctx, p.Pod, &corev1.PodLogOptions{})
			if err != nil {
				return err
			}
			text, isReady := strings.CutPrefix(log, "ready\n")
			got := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
			slices.Sort(got)
			if !isReady || !slices.Equal(got, want) {
				return fmt.Errorf("the watches saw %q, want %q", log, want)
			}
			return nil
		})
	}
	wantEvents()
	n.setConfigMap("settings", object{"a": "1", "b": "2"})
	wantEvents(
		". CREATE ..TIME", ". ATTRIB ..TIME", ". CREATE ..data_tmp", ". MOVED_FROM ..data_tmp", ". MOVED_TO ..data", ". DELETE ..TIME",
		"..data DELETE a", "..data DELETE b", "..data DELETE_SELF", "a ATTRIB", "a DELETE_SELF")
}
