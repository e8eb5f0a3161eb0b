package integration

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

// restartWith ends the plugin and starts it again with more flags, as a rollout does.
func (n *node) restartWith(args ...string) {
	n.t.Helper()
	if err := n.Terminate(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	n.AddArgs(args...)
	n.mustStart()
}

// TestChangedVolumeLimit restarts the plugin with a larger --max-volume-size and then with the
// first one again. What a running pod's volume may show follows, without another publish.
func TestChangedVolumeLimit(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			n := newNode(t, "--max-volume-size=64Ki")
			v := n.volume(map[string]string{"configMap": "app", "writeStrategy": strategy})
			sized := func(size int) string {
				value := n.canary()
				value += strings.Repeat("x", size-len(value))
				n.configMap("app", map[string]string{"key": value})
				return value
			}
			refused := func(shown string) {
				t.Helper()
				n.hasCondition(v, "more than the 65536 bytes that a volume may have (--max-volume-size)")
				n.wantContent(v, "key", shown)
			}
			small := sized(1 << 10)
			n.mustPublish(v)
			large := sized(300 << 10)
			refused(small)

			n.restartWith("--max-volume-size=512Ki")
			n.arrives(v, "key", large, afterRestart)
			n.hasCondition(v, "")
			large = sized(400 << 10)
			n.arrives(v, "key", large, soon)

			n.restartWith("--max-volume-size=64Ki")
			sized(410 << 10)
			refused(large)
			small = sized(1 << 10)
			n.arrives(v, "key", small, afterCause)
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}

// TestARaisedVolumeLimitIsWithinTheTotal raises only what one volume may have.
func TestARaisedVolumeLimitIsWithinTheTotal(t *testing.T) {
	n := newNode(t, "--max-volume-size=64Ki", "--max-total-size=512Ki")
	one, other := n.canary(), n.canary()+strings.Repeat("x", 50<<10)
	n.configMap("app", map[string]string{"key": one})
	n.configMap("other", map[string]string{"key": other})
	v, w := n.short("app"), n.short("other")
	n.mustPublish(v)
	n.mustPublish(w)
	n.restartWith("--max-volume-size=512Ki")
	large := n.canary() + strings.Repeat("x", 480<<10)
	n.configMap("app", map[string]string{"key": large})
	n.hasCondition(v, "together more than 524288 (--max-total-size)")
	n.wantContent(v, "key", one)
	n.mustUnpublish(w)
	n.arrives(v, "key", large, afterCause)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// TestTakenOverVolumesCount loses the records of a volume that is never written again. It counts
// towards the node's total with what its tmpfs holds.
func TestTakenOverVolumesCount(t *testing.T) {
	n := newNode(t, "--max-volume-size=64Ki", "--max-total-size=100Ki")
	value := n.canary() + strings.Repeat("x", 50<<10)
	n.configMap("app", map[string]string{"key": value})
	v := n.volume(map[string]string{"configMap": "app", "updatePolicy": "Pinned"})
	n.mustPublish(v)
	n.mustKill()
	if err := os.RemoveAll(n.StateDir()); err != nil {
		t.Fatal(err)
	}
	n.mustStart()
	n.mustPublish(v) // as the kubelet does after its own restart
	w := n.short("app")
	for range 2 {
		wantStatus(t, n.Publish(t.Context(), w), codes.ResourceExhausted, "the node's other volumes 53248, together more than 102400 (--max-total-size)")
		n.mustKill()
		n.mustStart()
	}
	n.wantContent(v, "key", value)
	n.mustUnpublish(v)
	n.mustPublish(w)
	n.mustUnpublish(w)
	n.wantNothingLeft()
}
