package integration

import (
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestChangeArrivesAtOnce compares with a watch that does nothing. No resync brings what
// the plugin missed.
func TestChangeArrivesAtOnce(t *testing.T) {
	n := newNode(t, "--resync-interval=1h")
	n.configMap("app", map[string]string{"key": n.canary()})
	n.secret("app", map[string]string{"password": n.canary()})
	v := n.volume(map[string]string{"sources": "- configMap: {name: app}\n- secret: {name: app}\n"})
	n.mustPublish(v)
	bare, err := harness.WatchBare(t.Context(), shared.Client(), n.namespace, "app")
	if err != nil {
		t.Fatal(err)
	}
	var took, bareTook []time.Duration
	for range 10 {
		key, password := n.canary(), n.canary()
		begin := time.Now()
		version := n.configMap("app", map[string]string{"key": key}).ResourceVersion
		// From the answer of the API server on: what its write takes is not the plugin's.
		took = append(took, n.arrives(v, "key", key, soon))
		at, err := bare.Arrived(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		bareTook = append(bareTook, at.Sub(begin))
		n.secret("app", map[string]string{"password": password})
		took = append(took, n.arrives(v, "password", password, soon))
	}
	t.Logf("changes arrived after %v, at a watch of the test after %v", took, bareTook)
	limit := 250*time.Millisecond + 10*harness.Median(bareTook)
	if median := harness.Median(took); median > limit {
		t.Errorf("a change took %s, want %s at most", median, limit)
	}
}
