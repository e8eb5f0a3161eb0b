package suite

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/probe/clock"
	"github.com/refvol/refvol/internal/must"
)

const (
	// samplesVariable names the file that TestNativeVolumeLatency writes its samples to.
	samplesVariable = "REFVOL_BENCH"

	// latencyPods is how many pods get one update each. It is odd: one of the samples is
	// the median then.
	latencyPods = 15
	// latencySpread is the time over which the updates are spread. The kubelet syncs each
	// pod every 60 to 90 s, so that none of them is likelier than another to come early in
	// a pod's period or late.
	latencySpread = 75 * time.Second
	// latencyLimit is how long one update may take into either volume.
	latencyLimit = 3 * time.Minute
)

// samples are the figures of all updates in milliseconds, one of each list per update, in
// the updates' order. All of one update begin with the moment right before its request.
type samples struct {
	// Kubelet and Refvol end when the pod's container has read the new text.
	Kubelet []float64 `json:"kubelet_ms"`
	Refvol  []float64 `json:"refvol_ms"`
	// Floor ends when a bare watch in this process has the event.
	Floor []float64 `json:"floor_ms"`
	// Answer ends when the request is answered.
	Answer []float64 `json:"answer_ms"`
}

// subject is one pod with two volumes of one ConfigMap, the kubelet's and refvol's,
// that one's only update, and a bare watch of it.
type subject struct {
	*pod
	text  string
	sent  time.Duration
	floor *harness.BareWatch
}

// latencyFiles are the kubelet's file and refvol's.
func latencyFiles() []string { return []string{mountDir + "native/key", mountDir + "live/key"} }

// How long changes take into the kubelet's own volumes and into refvol's, for the
// benchmarks. Each of the pods has a volume of either kind of a ConfigMap of its own, which
// is updated once. So the samples are as far apart from each other as the pods' syncs are,
// and the two of an update have the same request and the same reader: one process in the
// pod's container that waits for both files.
func TestNativeVolumeLatency(t *testing.T) {
	file := os.Getenv(samplesVariable)
	if file == "" {
		t.Skipf("%s names no file for the samples; make bench SCENARIO=native does", samplesVariable)
	}
	n := newNamespace(t)
	subjects := n.startSubjects(t)

	// The first moment is one step from now: what the kubelet does soon after a pod has
	// started is over then.
	moments := time.NewTicker(latencySpread / latencyPods)
	defer moments.Stop()
	var all samples
	for _, s := range subjects {
		<-moments.C
		configMap := contents{text: sized(s.text)}.configMap(s.Name)
		began := time.Now()
		s.sent = now(t)
		updated := must.Get(n.client.CoreV1().ConfigMaps(n.name).Update(t.Context(), configMap, metav1.UpdateOptions{}))(t)
		all.Answer = append(all.Answer, inMilliseconds(now(t)-s.sent))
		at := must.Get(s.floor.Arrived(t.Context(), updated.ResourceVersion))(t)
		all.Floor = append(all.Floor, inMilliseconds(at.Sub(began)))
	}
	for _, s := range subjects {
		h := s.awaitHistory(s.text, func(h history) bool { return h.has(s.text, latencyFiles()...) })
		var took []float64
		for _, shown := range latencyFiles() {
			arrived := h.last(shown)
			if after := arrived.At - s.sent; after <= 0 || after > latencyLimit {
				t.Errorf("%s: the update was in %s %s after its request", s.Name, shown, after)
			}
			took = append(took, inMilliseconds(arrived.At-s.sent))
		}
		all.Kubelet, all.Refvol = append(all.Kubelet, took[0]), append(all.Refvol, took[1])
	}
	text := must.Get(json.Marshal(all))(t)
	must.Do(t, os.WriteFile(file, text, 0o600))
}

// startSubjects starts all pods on one node and waits until they are ready.
func (n *namespace) startSubjects(t *testing.T) []*subject {
	t.Helper()
	node := n.workers(t)[0]
	var subjects []*subject
	for i := range latencyPods {
		name := fmt.Sprintf("reader-%d", i)
		n.setConfigMap(name, sized("old"))
		spec := newPod(name, refvol("live", attributes{"configMap": name}), native("native", name))
		spec.Spec.NodeName = node
		spec.Spec.Containers[0].Args = append([]string{"follow"}, latencyFiles()...)
		subjects = append(subjects, &subject{pod: n.create(spec), text: fmt.Sprintf("new %d", i)})
	}
	for _, s := range subjects {
		s.awaitReady()
		s.awaitHistory("the old text", func(h history) bool { return h.has("old", latencyFiles()...) })
		var err error
		if s.floor, err = harness.WatchBare(t.Context(), n.client, n.name, s.Name); err != nil {
			t.Fatal(err)
		}
	}
	return subjects
}

// sized is a ConfigMap's data of 1 KiB with the text in it.
func sized(text string) object {
	return object{"key": text, "filler": strings.Repeat("x", 1024-len(text)-len("key")-len("filler"))}
}

// now reads the clock that the pods' processes read, too.
func now(t *testing.T) time.Duration {
	t.Helper()
	return must.Get(clock.Now())(t)
}

func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
