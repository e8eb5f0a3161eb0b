package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/status"
)

// fakesBound is for the answer of 1,000 plugins, on a machine that does other things too.
const fakesBound = time.Minute

// TestManyFakePlugins, of the long form, prints what converged takes for 1,000 plugins that answer, one in ten of which never
// does. The nodes that don't answer cost one --plugin-timeout each, 50 at once.
func TestManyFakePlugins(t *testing.T) {
	if os.Getenv("REFVOL_LONG") == "" {
		t.Skip("SKIP: 1,000 plugins are asked in the long form (REFVOL_LONG=1)")
	}
	const startedAtOnce, deadEvery, timeout, plugins = 8, 10, 2 * time.Second, 1000
	w := newWorld(t)
	version := w.change()
	var lock sync.Mutex
	most, open := 0, 0
	count := func(n int) {
		lock.Lock()
		defer lock.Unlock()
		open += n
		most = max(most, open)
	}
	fake := func(i int) {
		name := fmt.Sprintf("fake-%04d", i)
		w.registerHere(name)
		w.pluginPod(name, serve(t, func(rw http.ResponseWriter, r *http.Request) {
			count(1)
			defer count(-1)
			if i%deadEvery == 0 {
				<-r.Context().Done()
				return
			}
			_ = json.NewEncoder(rw).Encode(fakeReport(name, w.fakeVolume(name, version)))
		}))
	}
	var starters sync.WaitGroup
	for first := range startedAtOnce {
		starters.Go(func() {
			for i := first; i < plugins; i += startedAtOnce {
				fake(i)
			}
		})
	}
	starters.Wait()
	if t.Failed() {
		return
	}
	w.command = shared.command
	dead := plugins / deadEvery
	began := time.Now()
	cmd := exec.CommandContext(t.Context(), w.command, "converged", "secret/db", "-n", w.namespace, "-o", "json", "--kubeconfig="+w.caller,
		"--timeout=10s", "--plugin-timeout="+timeout.String())
	out, _ := cmd.Output()
	took := time.Since(began)
	var v struct {
		Nodes, Showing int
		Laggards       []struct{ Node string }
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("converged over %d plugins, %d of them dead: %s, %s of CPU, %d asked at once", plugins, dead, took.Round(time.Millisecond),
		cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), most)
	if v.Nodes != plugins || v.Showing > plugins-dead || len(v.Laggards) < dead || !strings.HasPrefix(v.Laggards[0].Node, "fake-") {
		t.Errorf("%d nodes, %d show it, %d laggards; want %d, at most %d, at least %d", v.Nodes, v.Showing, len(v.Laggards), plugins, plugins-dead, dead)
	}
	if took > fakesBound || most > 50 {
		t.Errorf("%s, %d asked at once; want at most %s, 50", took, most, fakesBound)
	}
}

// fakeVolume shows the Secret.
func (w *world) fakeVolume(node, version string) status.Volume {
	return status.Volume{
		Name: "settings", Pod: status.Pod{Namespace: w.namespace, Name: "app-on-" + node, UID: node},
		Objects: []status.VolumeObject{{
			Object: &status.Object{Kind: "Secret", Namespace: w.namespace, Name: "db"}, Shown: &status.Version{ResourceVersion: version},
		}},
	}
}

// fakeReport is that of a plugin that answers each question with everything.
func fakeReport(node string, volumes ...status.Volume) *status.Report {
	report := &status.Report{Volumes: volumes, Header: status.Header{
		APIVersion: status.APIVersion, Kind: status.Kind, Driver: harness.DriverName, Node: node, ObservedAt: time.Now(),
	}}
	report.Number()
	return report
}
