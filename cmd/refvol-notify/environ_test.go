package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// TestReadShell reads what pkg/envfile writes.
func TestReadShell(t *testing.T) {
	values := map[string]string{"A": "", "B": "it's", "C": "a\nB='x'\n", "D": `\'"$(id)`, "E": "''", "F": "ä\r\n\t'", "G": "'\nX='"}
	var variables []envfile.Variable
	for name, value := range values {
		variables = append(variables, envfile.Variable{Name: name, Value: value})
	}
	text, skipped := envfile.Encode(volume.EnvShell, variables)
	if len(skipped) > 0 {
		t.Fatal(skipped)
	}
	got, err := readShell(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range values {
		if got[name] != value {
			t.Errorf("%s: %q, not %q", name, got[name], value)
		}
	}
	for _, bad := range []string{"A", "A=", "='x'\n", "A='", "A='x", "A='x'", "A='x'y\n", "A\n='x'\n", "A=\"secret\"\n"} {
		if _, err := readShell(bad); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// envPod returns a pod with an env volume whose file has VALUE.
func envPod(t *testing.T, v *liveVolume, state string, args ...string) *pod {
	return newPod(t, append(args, "--env="+v.path, "--exit-code=42", "--state="+state)...)
}

func (v *liveVolume) writeEnv(value string) {
	v.Helper()
	v.write(appliedFile, "VALUE='"+value+"'\n", wantFile, "VALUE='"+value+"'\n")
}

func (p *pod) expectStarts(want string) {
	p.Helper()
	if _, starts := p.times(); seconds(starts) != want {
		p.Errorf("starts at %q s, not %q\n%s", seconds(starts), want, p.log)
	}
}

// ready reports whether the application may start: the answer to the startup probe.
func (p *pod) ready() bool {
	p.mu.Lock()
	m := p.monitor
	p.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ready
}

// wakeUp simulates the kernel's notification.
func (p *pod) wakeUp() { signalTo(p.wake) }

// Equal variables: one restart for each change, and no more.
func TestEnvironmentFollows(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		v.writeEnv("one")
		p := envPod(t, v, state)
		p.setVariable("VALUE", "one")
		defer p.start()()
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		p.setVariable("VALUE", "two")
		v.writeEnv("two")
		p.wakeUp()
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		p.expectStarts("0 61")
	})
}

// The kubelet has old variables: three tries before any other container starts, then the application starts, and the next restarts have
// growing pauses, until the kubelet has the new variables.
func TestKubeletHasOldVariables(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	one, two := leak.NewValue(), leak.NewValue()
	synctest.Test(t, func(t *testing.T) {
		v.writeEnv(one)
		p := envPod(t, v, state)
		p.setVariable("VALUE", one)
		stop := p.start()
		defer stop()
		synctest.Wait()
		v.writeEnv(two)
		p.wakeUp()
		time.Sleep(4 * time.Second) //nolint:forbidigo // Fake time.
		if p.ready() {
			t.Error("the application starts with old variables at once")
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // Fake time.
		if !p.ready() {
			t.Error("the application does not start")
		}
		time.Sleep(58 * time.Second) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1 1.25 2.25 5.25 15.25 35.25")
		p.setVariable("VALUE", two)
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1 1.25 2.25 5.25 15.25 35.25 75.25")
		stop()
		for _, err := range []error{leak.Check("the log", p.log.String()), leak.CheckFiles(state)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// The variables are newer than the file, which follows at the pod's moment: nothing restarts.
func TestVariablesAreNewer(t *testing.T) {
	for name, restart := range map[string]bool{"at the start": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			v, state := newVolume(t, false), t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				v.writeEnv("one")
				p := envPod(t, v, state, "--patience=3m")
				p.setVariable("VALUE", "newest")
				want := "0"
				if restart {
					p.setVariable("VALUE", "one")
					want = "0 1"
				}
				defer p.start()()
				synctest.Wait()
				if restart {
					v.writeEnv("two")
					p.setVariable("VALUE", "newest")
					p.wakeUp()
				}
				time.Sleep(2 * time.Minute) //nolint:forbidigo // Fake time.
				if !p.ready() {
					t.Error("the application does not start")
				}
				v.writeEnv("newest")
				p.wakeUp()
				time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
				p.expectStarts(want)
			})
		})
	}
}

// It is not known which are newer, and the file stays: the containers restart after the patience. That is also so if the sidecar alone
// restarted meanwhile, because its variables then say nothing about the application's.
func TestPatienceEnds(t *testing.T) {
	for name, crash := range map[string]bool{"no crash": false, "a crash": true} {
		t.Run(name, func(t *testing.T) {
			v, state := newVolume(t, false), t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				v.writeEnv("two")
				p := envPod(t, v, state)
				p.setVariable("VALUE", "one")
				stop := p.start()
				time.Sleep(30 * time.Second) //nolint:forbidigo // Fake time.
				p.setVariable("VALUE", "two")
				want := "0 60"
				if crash {
					stop()
					stop = p.start()
					want = "0 30 60"
				}
				defer func() { stop() }()
				time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
				p.expectStarts(want)
			})
		})
	}
}

// A file that cannot be compared does not keep the application from starting.
func TestNoEnvFile(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		v.write("other", "x")
		p := envPod(t, v, state)
		defer p.start()()
		synctest.Wait()
		if !p.ready() {
			t.Error("the application does not start")
		}
		v.writeEnv("one")
		p.setVariable("VALUE", "one")
		p.wakeUp()
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1")
	})
}

// The file applied of an earlier or later generation is never opened, and none is opened twice.
func TestAppliedOfAnotherGeneration(t *testing.T) {
	v := newVolume(t, false)
	v.writeEnv("one")
	e := &environment{dir: v.path, lookup: os.LookupEnv}
	_, _, one, err := e.differing()
	if err != nil {
		t.Fatal(err)
	}
	v.writeEnv("two")
	seen := watchOpens(t, v.path)
	_, _, two, err := e.differing()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for is, want := range map[string]int{one: 0, two: 1} {
			before := seen.of(appliedFile)
			if err := e.openApplied(is); err != nil {
				t.Fatal(err)
			}
			if is == one && seen.of(appliedFile) != before || is == two && seen.of(appliedFile) != want {
				t.Errorf("%d opens after those of %s", seen.of(appliedFile), is)
			}
		}
	}
}

// The file applied is opened after the startup probe has succeeded with equal variables, and never for other variables.
func TestApplied(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	v.writeEnv("one")
	opens := watchOpens(t, v.path)
	t.Setenv("VALUE", "zero")
	args := []string{"--env=" + v.path, "--exit-code=42", "--settle=0s", "--state=" + state}
	probes := func() {
		t.Helper()
		if status := run(t.Context(), []string{"probe", "--state=" + state}, os.Stderr, os.Stderr); status != 0 {
			t.Fatalf("the probe ends with %d", status)
		}
	}
	p := start(t, args...) // the variables are older or newer than the file
	compared := opens.of(wantFile)
	probes()
	waitFor(t, "it compares again after the probe", func() bool { return opens.of(wantFile) > compared })
	p.stop()
	if n := opens.of(appliedFile); n > 0 {
		t.Fatalf("%d opens of applied", n)
	}
	if err := os.Remove(filepath.Join(state, stateFile)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VALUE", "one")
	p = start(t, args...)
	if opens.of(appliedFile) > 0 {
		t.Fatal("applied is opened before the containers start")
	}
	probes()
	waitFor(t, "applied is opened", func() bool { return opens.of(appliedFile) == 1 })
	v.writeEnv("two")
	if status := <-p.done; status != 42 {
		t.Fatalf("status %d", status)
	}
	if n := opens.of(appliedFile); n != 1 {
		t.Errorf("%d opens of applied", n)
	}
}
