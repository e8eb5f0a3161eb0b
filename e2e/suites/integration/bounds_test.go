package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// TestSlowReadersKeepTheirGeneration has a volume change 20 times a second. Readers that take a fifth of a second
// between two files of one generation find both, and those that read at full speed by way of ..data never miss one.
func TestSlowReadersKeepTheirGeneration(t *testing.T) {
	t.Parallel()
	const readers, interval, pause = 100, 50 * time.Millisecond, 200 * time.Millisecond
	n := newNode(t)
	data := func(i int) map[string]string { return map[string]string{"a": fmt.Sprint(i), "b": fmt.Sprint(i)} }
	n.configMap("app", data(0))
	v := n.short("app")
	n.mustPublish(v)
	dir := filepath.Join(n.Target(v), "..data")

	var ended atomic.Bool
	var fast, missed atomic.Int64
	var running, slow sync.WaitGroup
	for range 2 {
		running.Go(func() {
			for !ended.Load() {
				for _, key := range []string{"a", "b"} {
					if _, err := os.ReadFile(filepath.Join(dir, key)); errors.Is(err, fs.ErrNotExist) {
						missed.Add(1)
					}
					fast.Add(1)
				}
			}
		})
	}
	var lost, torn, late atomic.Int64
	slowReader := func() {
		begin := time.Now()
		generation, err := os.OpenRoot(dir)
		if err != nil {
			lost.Add(1)
			return
		}
		defer generation.Close()
		a, errA := generation.ReadFile("a")
		<-time.After(pause)
		b, errB := generation.ReadFile("b")
		switch {
		case time.Since(begin) > pause+2*interval: // the machine is busy: more than eight switches may have come
			late.Add(1)
		case errA != nil || errB != nil:
			lost.Add(1)
		case string(a) != string(b):
			torn.Add(1)
		}
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := 1; i <= readers; i++ {
		<-tick.C
		n.configMap("app", data(i))
		n.arrives(v, "b", fmt.Sprint(i), soon)
		slow.Go(slowReader)
	}
	slow.Wait()
	ended.Store(true)
	running.Wait()
	t.Logf("of %d slow readers %d lost their generation, %d were late; %d of %d fast reads missed a file", readers, lost.Load(), late.Load(), missed.Load(), fast.Load())
	if lost.Load()+torn.Load()+missed.Load() > 0 {
		t.Errorf("%d readers lost their generation, %d saw two, %d missed a file", lost.Load(), torn.Load(), missed.Load())
	}
	if late.Load() > readers/2 {
		t.Skip("the machine is too busy for readers of 0.2 s")
	}
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
