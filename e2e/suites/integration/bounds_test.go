package integration

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestReadersDontExceedTheTotal has readers keep all files open that volumes ever showed. What the kernel
// holds stays below the node's total, and publishes and updates go on once the readers have ended.
func TestReadersDontExceedTheTotal(t *testing.T) {
	t.Parallel()
	const total = 4 << 20
	n := newNode(t, "--max-volume-size=1Mi", fmt.Sprintf("--max-total-size=%d", total))
	large := func(i int) map[string]string {
		return map[string]string{"key": fmt.Sprint(i) + strings.Repeat("x", 600<<10)}
	}
	var volumes []*harness.Volume
	var releases []func()
	for i := range 8 {
		name := fmt.Sprint("app", i)
		n.configMap(name, large(0))
		v := n.short(name)
		err := n.Publish(t.Context(), v)
		if status.Code(err) == codes.ResourceExhausted {
			n.mustUnpublish(v)
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		volumes = append(volumes, v)
		releases = append(releases, hold(t, n.Target(v)))
		n.configMap(name, map[string]string{"key": "small"})
		n.arrives(v, "key", "small", soon)
		n.configMap(name, large(1))
		n.arrives(v, "key", large(1)["key"], soon)
		releases = append(releases, hold(t, n.Target(v)))
		n.configMap(name, map[string]string{"key": "small"})
		n.arrives(v, "key", "small", soon)
		harness.Eventually(t, soon, func() error { return n.pruned(v) })
	}
	held := n.kernelCounts(volumes...)
	t.Logf("%d volumes hold %d KiB, the limit is %d", len(volumes), held>>10, total>>10)
	if held > total {
		t.Errorf("the kernel holds %d bytes, more than %d", held, total)
	}
	n.configMap("another", large(0))
	another := n.short("another")
	wantStatus(t, n.Publish(t.Context(), another), codes.ResourceExhausted, "(--max-total-size)")
	for _, release := range releases {
		release()
	}
	// What they held is noticed with the next change.
	for i := range volumes {
		n.configMap(fmt.Sprint("app", i), map[string]string{"key": "smaller"})
		n.arrives(volumes[i], "key", "smaller", soon)
	}
	n.publishesSoon(another)
	for _, v := range append(volumes, another) {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}
