package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// probedPublishes is how many volumes are published at once: what a kubelet with its default of 110 pods
	// may ask for, with three volumes each.
	probedPublishes = 330
	// probeMedian is how long a probe may take meanwhile. Of single ones only the kubelet's own limit is
	// checked, as tests beside this one take the processors too.
	probeMedian, probeLongest = 100 * time.Millisecond, 5 * time.Second
)

// TestProbesDuringPublishes: /healthz, /readyz, /metrics and /status answer soon while many volumes are published.
func TestProbesDuringPublishes(t *testing.T) {
	binary, err := shared.plain()
	if err != nil {
		t.Fatal(err)
	}
	o := harness.PluginOptions{Binary: binary, Kubeconfig: shared.kubeconfig, Dir: nodeDir(t), Args: []string{"-v=2", anyPort, anyStatusPort, "--registration-dir="}}
	n := newNodeWith(t, o)
	address, err := n.HTTPAddress()
	if err != nil {
		t.Fatal(err)
	}
	var volumes []*harness.Volume
	for i := range probedPublishes {
		name := fmt.Sprint("app-", i)
		n.value(name)
		volumes = append(volumes, n.short(name))
	}
	answers := make(chan error, probedPublishes)
	for _, v := range volumes {
		go func() { answers <- n.Publish(t.Context(), v) }()
	}
	servedAt := map[string]string{"/healthz": address, "/readyz": address, "/metrics": address, "/status": n.statusAddress()}
	took := map[string][]time.Duration{}
	for published := 0; published < probedPublishes; {
		for path, at := range servedAt {
			began := time.Now()
			if text, status, err := get(t, "http://"+at+path); err != nil || status != 200 {
				t.Errorf("%s: %d, %v, %s", path, status, err, text)
			}
			took[path] = append(took[path], time.Since(began))
		}
		for len(answers) > 0 {
			if err := <-answers; err != nil {
				t.Fatal(err)
			}
			published++
		}
	}
	for path, all := range took {
		slices.Sort(all)
		median, longest := all[len(all)/2], all[len(all)-1]
		t.Logf("%s: %d times while %d volumes were published: median %s, longest %s", path, len(all), probedPublishes, median, longest)
		if median > probeMedian || longest > probeLongest {
			t.Errorf("%s took %s, as a median, and up to %s", path, median, longest)
		}
	}
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
}
