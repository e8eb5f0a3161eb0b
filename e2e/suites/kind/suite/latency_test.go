package suite

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/probe/clock"
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

// subject is one pod with two volumes of one ConfigMap, the kubelet's and refvol's, and
// that one's only update.
type subject struct {
	*pod
	text string
	sent time.Duration
	// lines are what the process in the pod tells; err, once lines is closed, is how it
	// failed.
	lines chan string
	err   error
}

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
	floors := n.watchFloors(t, subjects)
	for i, s := range subjects {
		s.expect(time.Duration(i+1)*latencySpread/latencyPods + latencyLimit)
	}

	// The first moment is one step from now: what the kubelet does soon after a pod has
	// started is over then.
	moments := time.NewTicker(latencySpread / latencyPods)
	defer moments.Stop()
	var all samples
	for i, s := range subjects {
		<-moments.C
		began := time.Now()
		s.sent = now(t)
		version := n.updateConfigMap(s.Name, sized(s.text)).ResourceVersion
		all.Answer = append(all.Answer, inMilliseconds(now(t)-s.sent))
		at, err := floors[i].Arrived(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		all.Floor = append(all.Floor, inMilliseconds(at.Sub(began)))
	}
	for _, s := range subjects {
		at := s.arrivals()
		all.Kubelet = append(all.Kubelet, inMilliseconds(at["native"]-s.sent))
		all.Refvol = append(all.Refvol, inMilliseconds(at["live"]-s.sent))
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// startSubjects starts all pods on one node and waits until they are ready.
func (n *namespace) startSubjects(t *testing.T) []*subject {
	t.Helper()
	node := n.worker(t)
	var subjects []*subject
	for i := range latencyPods {
		name := fmt.Sprintf("reader-%d", i)
		n.createConfigMap(name, sized("old"))
		spec := newPod(name, refvol("live", attributes{"configMap": name}), native("native", name))
		spec.Spec.NodeName = node
		subjects = append(subjects, &subject{pod: n.create(spec), text: fmt.Sprintf("new %d", i)})
	}
	for _, s := range subjects {
		s.awaitReady()
	}
	return subjects
}

// sized is a ConfigMap's data of 1 KiB with the text in it.
func sized(text string) object {
	return object{"key": text, "filler": strings.Repeat("x", 1024-len(text)-len("key")-len("filler"))}
}

// expect starts the process in the pod's container that waits for the update, and returns
// when it does. Its two goroutines end with that process, or with the test.
func (s *subject) expect(timeout time.Duration) {
	s.t.Helper()
	// The limit is the process's; this one is for a connection that breaks.
	ctx, cancel := context.WithTimeout(s.t.Context(), timeout+30*time.Second)
	s.t.Cleanup(cancel)
	reader, writer := io.Pipe()
	go func() {
		writer.CloseWithError(s.stream(ctx, "probe", writer, "arrivals", timeout.String(),
			mountDir+"live/key", s.text, mountDir+"native/key", s.text))
	}()
	// There is room for all that the process says, so that no connection is held up until
	// the test comes to this pod.
	s.lines = make(chan string, 3)
	go func() {
		defer close(s.lines)
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			s.lines <- lines.Text()
		}
		s.err = lines.Err()
	}()
	there, ok := <-s.lines
	if !ok {
		s.t.Fatalf("wait in %s: %v", s.Name, s.err)
	}
	here, err := clock.Name()
	if err != nil {
		s.t.Fatal(err)
	}
	if there != here {
		s.t.Fatalf("%s and this process have no clock in common: %q, here %q", s.Name, there, here)
	}
}

// arrivals returns when each of the two volumes, by its name, had the update.
func (s *subject) arrivals() map[string]time.Duration {
	s.t.Helper()
	at := map[string]time.Duration{}
	for line := range s.lines {
		var seen struct {
			File string        `json:"file"`
			At   time.Duration `json:"at"`
		}
		if err := json.Unmarshal([]byte(line), &seen); err != nil {
			s.t.Fatalf("%s: %q: %v", s.Name, line, err)
		}
		volume := strings.TrimSuffix(strings.TrimPrefix(seen.File, mountDir), "/key")
		if took := seen.At - s.sent; took <= 0 || took > latencyLimit {
			s.t.Errorf("%s: the update was in %s %s after its request", s.Name, volume, took)
		}
		at[volume] = seen.At
	}
	if s.err != nil || len(at) != 2 {
		s.t.Fatalf("%s: the update came to %v: %v", s.Name, at, s.err)
	}
	return at
}

// watchFloors watches the ConfigMap of each subject. The watches end with the test.
func (n *namespace) watchFloors(t *testing.T, subjects []*subject) []*harness.BareWatch {
	t.Helper()
	var floors []*harness.BareWatch
	for _, s := range subjects {
		floor, err := harness.WatchBare(t.Context(), n.client, n.name, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		floors = append(floors, floor)
	}
	return floors
}

// now reads the clock that the pods' processes read, too.
func now(t *testing.T) time.Duration {
	t.Helper()
	at, err := clock.Now()
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
