// Package native is benchmark B2: how long a change takes into the kubelet's own ConfigMap
// volumes and into refvol's, on a kind cluster. It owns the run of the e2e tier's test that
// measures it, and what its samples say; the test itself, TestNativeVolumeLatency, is
// in e2e/suites/kind/suite.
package native

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

const (
	// samplesVariable tells the test which file to write its samples to.
	samplesVariable = "REFVOL_BENCH"
	// leastUpdates is how many updates there must be.
	leastUpdates = 10
	// cleanUpTime is how long the cluster may take to go when ctx ends.
	cleanUpTime = 4 * time.Minute
)

// samples is what the test writes: figures in milliseconds, one of each list per update.
type samples struct {
	Kubelet []float64 `json:"kubelet_ms"`
	Refvol  []float64 `json:"refvol_ms"`
	Floor   []float64 `json:"floor_ms"`
	Answer  []float64 `json:"answer_ms"`
}

// Goals returns the bounds on what Run reports.
func Goals() []measure.Goal {
	return []measure.Goal{{Scenario: "B2", Result: "native.ratio", Figure: "value", Most: 1000, Least: true}}
}

// Run makes a kind cluster, measures there, takes it away and adds to the report, each from
// before the update's request, in milliseconds:
//
//   - native.kubelet_ms and native.refvol_ms: until a container has read the new text from
//     the kubelet's own volume and from refvol's;
//   - native.floor_ms: until a bare watch has the event;
//   - native.answer_ms: until the request is answered;
//   - native.after_answer_ms: native.refvol_ms without native.answer_ms, negative where the
//     new text was there before the answer;
//
// and native.ratio, the kubelet's p50 over refvol's. An update that is lost is an error. It
// needs a checkout as the working directory and what `make e2e` needs, takes minutes, and
// shows the tier's progress on stderr. It must run outside of a sandbox of package harness.
func Run(ctx context.Context, report *measure.Report) error {
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "refvol-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "samples.json")
	if err := runSuite(ctx, root, file); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("the test left no samples: %w", err)
	}
	return tell(report, text)
}

// runSuite has the e2e tier run the one test and write its samples to file.
func runSuite(ctx context.Context, root, file string) error {
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(root, "e2e"), "run", "-trimpath", "-buildvcs=false",
		"./suites/kind/run", "-test.run=^TestNativeVolumeLatency$")
	// Without cgo, as make does it, so that the build cache serves both.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "KUBELET_SYNC=1m", samplesVariable+"="+file)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	// An interrupt goes to the group that go run and its program are, and that one takes
	// the cluster away before it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = cleanUpTime
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the e2e tier's TestNativeVolumeLatency: %w", err)
	}
	return nil
}

// tell adds to the report what the test's samples say.
func tell(report *measure.Report, text []byte) error {
	var all samples
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("samples of the test: %w", err)
	}
	updates := len(all.Kubelet)
	if updates < leastUpdates || len(all.Refvol) != updates || len(all.Floor) != updates || len(all.Answer) != updates {
		return fmt.Errorf("samples of the test: %d, %d, %d and %d, want as many of each, and %d or more",
			updates, len(all.Refvol), len(all.Floor), len(all.Answer), leastUpdates)
	}
	var afterAnswer []float64
	for i, took := range all.Refvol {
		afterAnswer = append(afterAnswer, took-all.Answer[i])
	}
	for _, one := range []struct {
		name    string
		samples []float64
	}{
		{"native.kubelet_ms", all.Kubelet},
		{"native.refvol_ms", all.Refvol},
		{"native.floor_ms", all.Floor},
		{"native.answer_ms", all.Answer},
		{"native.after_answer_ms", afterAnswer},
	} {
		if err := report.Samples(one.name, "ms", one.samples); err != nil {
			return err
		}
	}
	report.Value("native.ratio", "x", measure.Median(all.Kubelet)/measure.Median(all.Refvol))
	return nil
}
