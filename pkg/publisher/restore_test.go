package publisher

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/refvol/refvol/pkg/binding"
)

func TestRestoreUnmountsOnlyWhatNobodyWillUnpublish(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		known, orphan, waiting := e.request("v1"), e.request("v2"), e.request("v3")
		for _, r := range []binding.Request{known, orphan, waiting} {
			e.publish(r)
		}
		e.halt()
		e.pods.remove(waiting)
		if err := os.RemoveAll(filepath.Join(e.opts.KubeletDir, "pods", string(orphan.Pod.UID))); err != nil {
			t.Fatal(err)
		}
		e.restart()
		e.settle()
		if got := e.mounts.targets(); !slices.Equal(got, []string{known.Target, waiting.Target}) {
			t.Errorf("mounted are %v", got)
		}
		if lines := e.logs.With("Unmounted a volume whose pod is gone", `volumeID="v2"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		if lines := e.logs.With("until the kubelet publishes it again", `volumeID="v3"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestTheKubeletsDirectoryMayBeSpelledBadly(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.KubeletDir += "/./" }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
	})
}
