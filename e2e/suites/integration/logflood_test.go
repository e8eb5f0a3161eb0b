package integration

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestOnePodFloodsNoLog has one ConfigMap be good and bad in turn, which a pod of 128 volumes shows with 32 items each: first
// one update after the other, then by three writers as fast as they can.
func TestOnePodFloodsNoLog(t *testing.T) {
	const (
		volumes, keys   = 128, 32
		updates         = 10
		perUpdate, most = 32 << 10, 1 << 20
	)
	binary, err := shared.plain()
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeWith(t, harness.PluginOptions{Binary: binary, Kubeconfig: shared.kubeconfig, Args: []string{anyPort, "-v=0"}})
	long := func(name string, i int) string {
		return fmt.Sprintf("%s-%04d%s", name, i, strings.Repeat("x", 247-len(name)))
	}
	good, bad := map[string]string{}, map[string]string{}
	native := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}
	for i := range keys {
		good[long("good", i)], bad[long("bad", i)] = "", ""
		native.Items = append(native.Items, corev1.KeyToPath{Key: long("good", i), Path: fmt.Sprint("file-", i)})
	}
	states := []map[string]string{bad, good}
	conditions := []series{`refvol_volumes{condition="RefKeyNotFound"}`, `refvol_volumes{condition="Current"}`}
	n.configMap("app", good)

	first := n.volume(map[string]string{"volume": "native"})
	first.Beside = []corev1.Volume{{Name: "native", VolumeSource: corev1.VolumeSource{ConfigMap: native}}}
	var all []*harness.Volume
	for i := range volumes {
		v := *first
		v.Name = fmt.Sprint("volume-", i)
		all = append(all, &v)
		if err := n.StorePod(t.Context(), &v); err != nil { // before the first publish, so that the plugin reads the pod once
			t.Fatal(err)
		}
	}
	if err := inParallel(volumes, 16, func(i int) error { return n.Publish(t.Context(), all[i]) }); err != nil {
		t.Fatal(err)
	}

	begin := n.logBytes()
	for i := range updates {
		n.configMap("app", states[i%2])
		n.counts(map[series]float64{conditions[i%2]: volumes})
	}
	grew := (n.logBytes() - begin) / updates
	t.Logf("an update of %d volumes logs %d bytes", volumes, grew)
	if grew > perUpdate {
		t.Fatalf("want %d bytes at most", perUpdate)
	}

	before, began, stop := n.logBytes(), time.Now(), make(chan struct{})
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			for i := w; ; i++ {
				select {
				case <-stop:
					return
				default: // writers conflict with each other, which is no matter here
					_, _ = n.tryConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: states[i%2]})
				}
			}
		})
	}
	defer writers.Wait()
	defer close(stop)
	harness.Eventually(t, soon, func() error {
		if n.scrape().sum("refvol_log_lines_left_out_total") == 0 {
			return fmt.Errorf("in %d bytes of log no line was left out", n.logBytes()-before)
		}
		return nil
	})
	t.Logf("three writers make %d bytes of log in %s", n.logBytes()-before, time.Since(began).Round(time.Millisecond))
	if got := n.logBytes() - begin; got > most {
		t.Errorf("the log grew by %d bytes, want %d at most", got, most)
	}
	n.published("app") // another pod's
}

// logBytes returns the size of the plugin's log.
func (n *node) logBytes() int64 {
	n.t.Helper()
	log, err := os.Stat(n.LogPath())
	if err != nil {
		n.t.Fatal(err)
	}
	return log.Size()
}
