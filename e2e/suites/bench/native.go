package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// runNative is B2. The e2e tier's TestNativeVolumeLatency measures it, and fails if an update is lost.
func runNative(ctx context.Context, l *lab) error {
	root := must(harness.Repository())
	file := filepath.Join(l.dir, "samples.json")
	cmd := exec.CommandContext(ctx, filepath.Join(root, "e2e/suites/kind/run.sh"), "-test.run=^TestNativeVolumeLatency$")
	cmd.Env = append(os.Environ(), "KUBELET_SYNC=1m", "REFVOL_BENCH="+file)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	// It takes the cluster away before it ends, and an interrupt from the terminal must not reach what it runs for that.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 4 * time.Minute
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the e2e tier's TestNativeVolumeLatency: %w", err)
	}
	// Milliseconds from before an update's request: until a container has read the new text from the kubelet's volume
	// and from refvol's, until a bare watch has the event, and until the request is answered.
	var all map[string][]float64
	fatal(json.Unmarshal(must(os.ReadFile(file)), &all))
	for _, name := range []string{"kubelet_ms", "refvol_ms", "floor_ms", "answer_ms"} {
		if n := len(all[name]); n < 10 || n != len(all["kubelet_ms"]) {
			return fmt.Errorf("the test has %d samples of %s, want as many of each, and 10 or more", n, name)
		}
		fatal(l.report.Samples("native."+name, "ms", all[name]))
	}
	l.report.Value("native.ratio", "x", measure.Median(all["kubelet_ms"])/measure.Median(all["refvol_ms"]))
	return nil
}
