package main

import (
	"errors"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
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
	v := newVolume(t)
	e := &environment{dir: v.path, variables: values}
	differ := func(text string, want ...string) {
		t.Helper()
		v.write(wantFile, text)
		if c, err := e.compare(); err != nil || !slices.Equal(c.differing, want) || text != "" && len(c.all) != 5 {
			t.Errorf("%q differ in %+v: %v, want %q", text, c, err, want)
		}
	}
	differ(string(text))
	delete(values, "2")
	values["UID"] = "secret"
	differ(string(text), "2", "UID")
	differ("", slices.Sorted(maps.Keys(values))...) // none gives them
	for bad, says := range map[string]string{
		"A='secret'\n": "NUL byte", "A=x\x00B=secret": "NUL byte", "secret\x00": "entry 1 is not", "A=x\x00=secret\x00": "entry 2 is not", "A=secret\x00": "A does not begin with --env-prefix=C",
	} {
		e.prefix = ""
		if _, prefix, found := strings.Cut(says, "--env-prefix="); found {
			e.prefix = prefix
		}
		v.write(wantFile, bad)
		if _, err := e.compare(); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// envPod returns a pod with an env volume whose file has VALUE. The random keys are always the same, because one mark in 256 is wrong.
func envPod(t *testing.T, v *liveVolume, args ...string) *pod {
	cryptotest.SetGlobalRandom(t, 1)
	return newPod(t, append([]string{"--env-prefix=V", "--env=" + v.path, "--exit-code=42", "--state=" + t.TempDir()}, args...)...)
}

func (v *liveVolume) writeWant(text string) {
	v.Helper()
	v.write(appliedFile, text, wantFile, text)
}

func isApplied(t *testing.T, state string) bool {
	t.Helper()
	return must.Get(loadState(state))(t).Equal
}

func (v *liveVolume) writeEnv(value string) {
	v.Helper()
	v.writeWant("VALUE=" + value + "\x00")
}

func (p *pod) current() *monitor {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.monitor
}

// ready reports whether the application may start: the answer to the postStart hook.
func (p *pod) ready() bool {
	m := p.current()
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.readyAt.IsZero()
}

func (p *pod) metrics() string {
	w := httptest.NewRecorder()
	p.current().metrics(w, nil)
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

func (p *pod) wakeUp() { signalTo(p.wake) }

// step is what happens to a pod with an env volume some time after the step before. Of the texts, "" changes nothing.
type step struct {
	after time.Duration
	// check is what must be true before the rest happens.
	check func(p *pod)
	// kubelet has the variables that the next process gets, and file those of the volume, with blanks between them.
	kubelet, file string
	// other is a change in another volume.
	other string
	// crashes means that the sidecar alone starts anew.
	crashes bool
}

func (s *step) do(p *pod, v, other *liveVolume) {
	if s.kubelet != "" {
		p.setVariables(s.kubelet)
	}
	if s.file != "" {
		v.writeWant(strings.ReplaceAll(s.file, " ", "\x00") + "\x00")
		p.wakeUp()
	}
	if s.other != "" {
		other.write("app.conf", s.other)
		p.wakeUp()
	}
}

func isReady(p *pod) {
	if !p.ready() {
		p.Error("the application does not start")
	}
}

func isNotApplied(p *pod) {
	if isApplied(p.T, p.options.state) {
		p.Error("applied has a receipt")
	}
}

// TestEnvironment: when the sidecar restarts the containers because of their variables. An hour after the last step, applied has a receipt.
func TestEnvironment(t *testing.T) {
	one, two := leak.NewValue(), leak.NewValue()
	with, without := "V_NAME=x V_PASSWORD="+one, "V_NAME=x"
	type scenario struct {
		args  string
		steps []step // the first one is before the start
		// isRunning means that the containers run already. hookFails means that the first process's postStart hook fails, so that no container starts.
		isRunning, hookFails bool
		// starts are the times of all starts in seconds. says are texts of the log.
		starts string
		says   []string
	}
	row := func(starts string, steps ...step) scenario { return scenario{starts: starts, steps: steps} }
	for name, test := range map[string]scenario{
		"equal variables: one restart for each change, and no more": row("0 61",
			step{kubelet: "VALUE=one", file: "VALUE=one"},
			step{after: time.Minute, kubelet: "VALUE=two", file: "VALUE=two"}),
		// Three tries before any other container starts, then the application starts, and the next restarts have growing pauses.
		"the kubelet has old variables": {
			steps: []step{
				{kubelet: "VALUE=" + one, file: "VALUE=" + one},
				{file: "VALUE=" + two},
				{after: 4 * time.Second, check: func(p *pod) {
					if p.ready() {
						p.Error("the application starts with old variables at once")
					}
				}},
				{after: 2 * time.Second, check: isReady},
				{
					after: 58 * time.Second, check: func(p *pod) { p.expectMetrics("old_variables 1", "old_environments_total 6") },
					kubelet: "VALUE=" + two,
				},
				{after: time.Hour, check: func(p *pod) { p.expectMetrics("old_variables 0", "old_environments_total 6") }},
			},
			starts: "0 1 1.25 2.25 5.25 15.25 35.25 75.25", says: []string{"try=1", "try=2", "try=3"},
		},
		"while it is not known which are newer, other files count": {
			args: "--patience=1h", starts: "0 61",
			steps: []step{{kubelet: "VALUE=two", file: "VALUE=one"}, {after: time.Minute, other: "2"}, {after: time.Minute, file: "VALUE=two"}},
		},
		"the variables are newer than the file, which follows": {
			args: "--patience=3m", starts: "0",
			steps: []step{{kubelet: "VALUE=newest", file: "VALUE=one"}, {after: 2 * time.Minute, check: isReady, file: "VALUE=newest"}},
		},
		// The containers restart for another reason, with newer variables: two more restarts show that these stay. Then nothing restarts until
		// the file changes, and not if it has become equal.
		"a held volume keeps older files": row("0 1 61 361 7201",
			step{kubelet: "VALUE=old", file: "VALUE=old"},
			step{kubelet: "VALUE=new", other: "2"},
			step{after: time.Hour, file: "VALUE=new"},
			step{after: time.Hour, kubelet: "VALUE=newest", file: "VALUE=newest"}),
		// It is not known which are newer: the containers restart after the patience, also if the sidecar alone restarted meanwhile, because
		// its variables then say nothing about the application's.
		"the patience ends": row("0 60", step{kubelet: "VALUE=one", file: "VALUE=two"}, step{after: 30 * time.Second, kubelet: "VALUE=two"}),
		"the patience ends after a crash": row("0 30 60",
			step{kubelet: "VALUE=one", file: "VALUE=two"},
			step{after: 30 * time.Second, kubelet: "VALUE=two", crashes: true}),
		// The next process compares its own variables.
		"the hook fails": {
			hookFails: true, steps: []step{
				{kubelet: "VALUE=one", file: "VALUE=one"},
				{after: time.Second, crashes: true, kubelet: "VALUE=two"},
				{after: time.Second, check: isNotApplied, file: "VALUE=two"},
			},
			starts: "0 1",
		},
		// A process that finds running containers and no state does not take their variables, which may be older, for its own.
		"containers that run before the first process": {
			isRunning: true, steps: []step{{kubelet: "VALUE=two", file: "VALUE=two"}, {after: 30 * time.Second, check: isNotApplied}}, starts: "0 60",
		},
		"no file that can be compared": row("0 1", step{}, step{check: isReady, kubelet: "VALUE=one", file: "VALUE=one"}),
		// applied gets no receipt before no container has the variable.
		"an object ceases to give a variable": row("0 61", step{kubelet: with, file: with}, step{after: time.Minute, kubelet: without, file: without}),
		"the kubelet is late by a minute": row("0 61 61.25 62.25 65.25 75.25 95.25 135.2",
			step{kubelet: with, file: with},
			step{after: time.Minute, file: without},
			step{after: time.Minute, check: isNotApplied, kubelet: without}),
		// Only its prefix tells that the variable is not the image's.
		"a variable that the file has never had": row("0 60",
			step{kubelet: with + " PATH=/bin", file: without},
			step{after: 30 * time.Second, check: isNotApplied, kubelet: without}),
	} {
		t.Run(name, func(t *testing.T) {
			v, other := newVolume(t), newVolume(t)
			synctest.Test(t, func(t *testing.T) {
				p := envPod(t, v, append(strings.Fields(test.args), "--dir="+other.path)...)
				v.write("other", "x")
				other.write("app.conf", "0")
				test.steps[0].do(p, v, other)
				if test.isRunning {
					must.Do(t, os.WriteFile(startedIn(p.options.state), nil, 0o600))
				}
				p.hookFails = test.hookFails
				stop := p.start()
				for _, s := range test.steps[1:] {
					synctest.Wait()
					<-time.After(s.after)
					if s.check != nil {
						s.check(p)
					}
					if s.crashes {
						stop()
						p.hookFails = false
					}
					s.do(p, v, other)
					if s.crashes {
						stop = p.start()
					}
				}
				<-time.After(time.Hour)
				if _, starts := p.times(); seconds(starts) != test.starts {
					t.Errorf("starts at %q s, not %q\n%s", seconds(starts), test.starts, p.log)
				}
				if !isApplied(t, p.options.state) {
					t.Errorf("applied has no receipt\n%s", p.log)
				}
				stop()
				for _, text := range test.says {
					if !strings.Contains(p.log.String(), text) {
						t.Errorf("the log has no %s:\n%s", text, p.log)
					}
				}
				must.Do(t, errors.Join(leak.Check("the log", p.log.String()), leak.CheckFiles(p.options.state)))
			})
		})
	}
}

// The file becomes equal after the look and before it is compared: that is no change.
func TestFileFollowsAfterALook(t *testing.T) {
	v := newVolume(t)
	v.writeEnv("older")
	p := envPod(t, v)
	p.setVariables("VALUE=newest")
	n := p.process()
	must.Do(t, n.begin(t.Context(), mustLook(t, p.options)))
	before := mustLook(t, p.options)
	v.writeEnv("newest")
	for _, now := range []files{before, mustLook(t, p.options)} {
		if changed := n.changed(now); len(changed) > 0 {
			t.Errorf("changed: %s", firstNames(changed))
		}
	}
}

// The file applied of an earlier or later generation is never opened, and none is opened twice.
func TestAppliedOfAnotherGeneration(t *testing.T) {
	v := newVolume(t)
	v.writeEnv("one")
	e := newEnvironment(v.path, "V", os.Environ())
	_, one, err := e.readWant()
	must.Do(t, err)
	v.writeEnv("two")
	seen := watchOpens(t, v.path)
	_, two, err := e.readWant()
	must.Do(t, err)
	for range 2 {
		for is, want := range map[string]int{one: 0, two: 1} {
			before := seen.of(appliedFile)
			must.Do(t, e.openApplied(is))
			if is == one && seen.of(appliedFile) != before || is == two && seen.of(appliedFile) != want {
				t.Errorf("%d opens after those of %s", seen.of(appliedFile), is)
			}
		}
	}
}

// The file applied is opened once, after the postStart hook has succeeded with equal variables.
func TestApplied(t *testing.T) {
	v, state := newVolume(t), t.TempDir()
	v.writeEnv("one")
	opens := watchOpens(t, v.path)
	args := []string{"--env=" + v.path, "--env-prefix=VALUE", "--exit-code=42", "--settle=0s", "--state=" + state}
	t.Setenv("VALUE", "one")
	p := start(t, args...)
	if opens.of(appliedFile) > 0 {
		t.Fatal("applied is opened before the containers start")
	}
	if status := run(t.Context(), []string{"wait", "--state=" + state}, os.Stderr, os.Stderr); status != 0 {
		t.Fatalf("the hook ends with %d", status)
	}
	waitFor(t, "applied is opened", func() bool { return opens.of(appliedFile) == 1 })
	v.writeEnv("two")
	if status := <-p.done; status != 42 {
		t.Fatalf("status %d", status)
	}
	if n := opens.of(appliedFile); n != 1 {
		t.Errorf("%d opens of applied", n)
	}
}
