package main

import (
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// TestDiffering compares with what pkg/envfile writes.
func TestDiffering(t *testing.T) {
	values := map[string]string{"spring.datasource.url": "", "2": "it's", "C": "a\nB=x\n", "UID": `\'"$(id)`, "F": "ä\r\n\t="}
	var variables []envfile.Variable
	for name, value := range values {
		variables = append(variables, envfile.Variable{Name: name, Value: value})
	}
	text, skipped := envfile.Encode(volume.EnvEnviron, variables)
	if len(skipped) > 0 {
		t.Fatal(skipped)
	}
	v := newVolume(t, false)
	e := &environment{dir: v.path, variables: values}
	differing := func(text string) (names, all []string, err error) {
		v.write(wantFile, text)
		c, err := e.compare()
		if err != nil {
			return nil, nil, err
		}
		return c.differing, c.all, err
	}
	if names, all, err := differing(string(text)); err != nil || len(names) > 0 || !slices.Equal(all, slices.Sorted(maps.Keys(values))) {
		t.Errorf("of equal variables %q of %q differ: %v", names, all, err)
	}
	delete(values, "2")
	values["UID"] = "secret"
	if names, _, err := differing(string(text)); err != nil || !slices.Equal(names, []string{"2", "UID"}) {
		t.Errorf("%q differ: %v", names, err)
	}
	if names, all, err := differing(""); err != nil || !slices.Equal(names, all) || !slices.Equal(all, slices.Sorted(maps.Keys(values))) {
		t.Errorf("of variables that none gives, %q of %q differ: %v", names, all, err)
	}
	e.prefix = "C"
	if _, _, err := differing("A=secret\x00"); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "A does not begin with --env-prefix=C") {
		t.Error(err)
	}
	e.prefix = ""
	for bad, says := range map[string]string{
		"A='secret'\n": "NUL byte", "A=x\x00B=secret": "NUL byte", "secret\x00": "entry 1 is not", "A=x\x00=secret\x00": "entry 2 is not",
	} {
		if _, _, err := differing(bad); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// envPod returns a pod with an env volume whose file has VALUE. The random keys are always the same, because one mark in 256 is wrong.
func envPod(t *testing.T, v *liveVolume, state string, args ...string) *pod {
	cryptotest.SetGlobalRandom(t, 1)
	return newPod(t, append([]string{"--env-prefix=V", "--env=" + v.path, "--exit-code=42", "--state=" + state}, args...)...)
}

func (v *liveVolume) writeEnv(value string) {
	v.Helper()
	v.write(appliedFile, "VALUE="+value+"\x00", wantFile, "VALUE="+value+"\x00")
}

func (p *pod) expectStarts(want string) {
	p.Helper()
	if _, starts := p.times(); seconds(starts) != want {
		p.Errorf("starts at %q s, not %q\n%s", seconds(starts), want, p.log)
	}
}

// ready reports whether the application may start: the answer to the postStart hook.
func (p *pod) ready() bool {
	p.mu.Lock()
	m := p.monitor
	p.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.readyAt.IsZero()
}

// metrics is what the metrics say.
func (p *pod) metrics() string {
	p.mu.Lock()
	m := p.monitor
	p.mu.Unlock()
	w := httptest.NewRecorder()
	m.metrics(w, nil)
	return w.Body.String()
}

func (p *pod) expectMetrics(lines ...string) {
	p.Helper()
	text := p.metrics()
	for _, line := range lines {
		if !strings.Contains(text, "\nrefvol_notify_"+line+"\n") {
			p.Errorf("no %s in\n%s", line, text)
		}
	}
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
		p.expectMetrics("old_variables 1", "old_environments_total 6")
		for _, try := range []string{"try=1", "try=2", "try=3"} {
			if !strings.Contains(p.log.String(), try) {
				t.Errorf("the log has no %s:\n%s", try, p.log)
			}
		}
		p.setVariable("VALUE", two)
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1 1.25 2.25 5.25 15.25 35.25 75.25")
		p.expectMetrics("old_variables 0", "old_environments_total 6")
		stop()
		for _, err := range []error{leak.Check("the log", p.log.String()), leak.CheckFiles(state)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// While it is not known whether the variables or the file are newer, other files count.
func TestOtherFilesCountInDoubt(t *testing.T) {
	v, other, state := newVolume(t, false), newVolume(t, false), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		v.writeEnv("one")
		other.write("a", "1")
		p := envPod(t, v, state, "--dir="+other.path, "--patience=1h")
		p.setVariable("VALUE", "two")
		defer p.start()()
		synctest.Wait()
		<-time.After(time.Minute)
		p.expectStarts("0")
		other.write("a", "2")
		p.wakeUp()
		<-time.After(time.Minute)
		p.expectStarts("0 61")
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

// A held volume keeps older files, and the containers restart for another reason, with newer variables: two more restarts show that
// these stay. Then nothing restarts until the file changes, and not if it has become equal.
func TestFileIsHeld(t *testing.T) {
	v, other, state := newVolume(t, false), newVolume(t, false), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		v.writeEnv("old")
		other.write("app.conf", "1")
		p := envPod(t, v, state, "--dir="+other.path)
		p.setVariable("VALUE", "old")
		defer p.start()()
		synctest.Wait()
		p.setVariable("VALUE", "new")
		other.write("app.conf", "2")
		p.wakeUp()
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1 61 361")
		v.writeEnv("new")
		p.wakeUp()
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1 61 361")
		p.setVariable("VALUE", "newest")
		v.writeEnv("newest")
		p.wakeUp()
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1 61 361 7201")
	})
}

// If the hook failed, the containers have not started: the next process compares its own variables.
func TestHookFails(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		v.writeEnv("one")
		opens := watchOpens(t, v.path)
		p := envPod(t, v, state)
		p.setVariable("VALUE", "one")
		p.hookFails = true
		stop := p.start()
		time.Sleep(time.Second) //nolint:forbidigo // Fake time.
		stop()
		p.setVariable("VALUE", "two") // the kubelet has a newer one now
		p.hookFails = false
		defer p.start()()
		time.Sleep(time.Second) //nolint:forbidigo // Fake time.
		if n := opens.of(appliedFile); n > 0 {
			t.Errorf("%d opens of applied, which has older variables", n)
		}
		v.writeEnv("two")
		p.wakeUp()
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		p.expectStarts("0 1")
	})
}

// The file becomes equal after the look and before it is compared: that is no change.
func TestFileFollowsAfterALook(t *testing.T) {
	v := newVolume(t, false)
	v.writeEnv("older")
	p := envPod(t, v, t.TempDir())
	p.setVariable("VALUE", "newest")
	n := p.process()
	look := func() files {
		t.Helper()
		now, err := n.look()
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	if err := n.begin(t.Context(), look()); err != nil {
		t.Fatal(err)
	}
	before := look()
	v.writeEnv("newest")
	for _, now := range []files{before, look()} {
		if changed := n.changed(now); len(changed) > 0 {
			t.Errorf("changed: %s", firstNames(changed))
		}
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
	e := newEnvironment(v.path, "V", os.Environ())
	_, one, err := e.readWant()
	if err != nil {
		t.Fatal(err)
	}
	v.writeEnv("two")
	seen := watchOpens(t, v.path)
	_, two, err := e.readWant()
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

// The file applied is opened after the postStart hook has succeeded with equal variables, and never for other variables.
func TestApplied(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	v.writeEnv("one")
	opens := watchOpens(t, v.path)
	t.Setenv("VALUE", "zero")
	args := []string{"--env=" + v.path, "--env-prefix=VALUE", "--exit-code=42", "--settle=0s", "--state=" + state}
	hook := func() {
		t.Helper()
		if status := run(t.Context(), []string{"wait", "--state=" + state}, os.Stderr, os.Stderr); status != 0 {
			t.Fatalf("the hook ends with %d", status)
		}
	}
	p := start(t, args...) // the variables are older or newer than the file
	compared := opens.of(wantFile)
	hook()
	waitFor(t, "it compares again after the hook", func() bool { return opens.of(wantFile) > compared })
	p.stop()
	if n := opens.of(appliedFile); n > 0 {
		t.Fatalf("%d opens of applied", n)
	}
	for _, name := range []string{filepath.Join(state, stateFile), startedIn(state)} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("VALUE", "one")
	p = start(t, args...)
	if opens.of(appliedFile) > 0 {
		t.Fatal("applied is opened before the containers start")
	}
	hook()
	waitFor(t, "applied is opened", func() bool { return opens.of(appliedFile) == 1 })
	v.writeEnv("two")
	if status := <-p.done; status != 42 {
		t.Fatalf("status %d", status)
	}
	if n := opens.of(appliedFile); n != 1 {
		t.Errorf("%d opens of applied", n)
	}
}
