package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func (p *pod) expectActed(want string) {
	p.Helper()
	if acted, _ := p.times(); seconds(acted) != want {
		p.Errorf("acted at %q s, not %q\n%s", seconds(acted), want, p.log)
	}
}

// A burst counts as one change, which waits until the burst is over, for at most 10 seconds. A change that is reverted before it was acted on
// causes no action.
func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		every   time.Duration
		changes []string // "1" is what the file has at first
		want    string
	}{
		"one change":  {time.Second, []string{"2"}, "2"},
		"a burst":     {500 * time.Millisecond, []string{"2", "3", "4", "5"}, "3.5"},
		"an endless":  {900 * time.Millisecond, strings.Split("abcdefghijklmno", ""), "11 14.6"}, // from 1 s to 13.6 s
		"two of them": {3 * time.Second, []string{"2", "3"}, "2 5"},
		"none":        {time.Second, nil, ""},
		"taken back":  {500 * time.Millisecond, []string{"2", "1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/")
				defer p.start()()
				<-time.After(time.Second)
				for _, text := range c.changes {
					p.set("/v/a", text)
					<-time.After(c.every)
				}
				<-time.After(time.Minute)
				p.expectActed(c.want)
			})
		})
	}
}

// A failed action is retried with back-off and logged once. A new change is acted on at once.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/", "--settle=0s")
		p.fails = func() error { return errors.New("it is down") }
		defer p.start()()
		synctest.Wait()
		p.set("/v/a", "2")
		<-time.After(100 * time.Second)
		p.expectActed("0 1 3 7 15 31 63")
		p.expectMetrics("pending 1", "actions_total{result=\"failed\"} 7", "actions_total{result=\"done\"} 0", "changes_total 1")
		if n := strings.Count(p.log.String(), "it is down"); n != 1 {
			t.Errorf("the log says %d times that it is down:\n%s", n, p.log)
		}
		p.fails = func() error { return nil }
		p.set("/v/a", "3")
		<-time.After(time.Hour)
		p.expectActed("0 1 3 7 15 31 63 100")
		p.expectMetrics("pending 0", "actions_total{result=\"failed\"} 7", "actions_total{result=\"done\"} 1")
		for _, line := range []string{"msg=acted", "msg=watches"} {
			if n := strings.Count(p.log.String(), line); n != 1 {
				t.Errorf("the log has %d lines with %s:\n%s", n, line, p.log)
			}
		}
	})
}

// A failed action is never forgotten: it is tried again every 5 minutes, also by the next process if there is a state.
func TestFailedActionIsNotForgotten(t *testing.T) {
	state := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/", "--settle=0s", "--state="+state)
		p.fails = func() error { return errors.New("it is down") }
		stop := p.start()
		synctest.Wait()
		p.set("/v/a", "2")
		<-time.After(time.Hour)
		before, _ := p.times()
		if n := len(before); n < 15 || before[n-1]-before[n-2] != longestRetry {
			t.Errorf("tried at %q s", seconds(before))
		}
		stop()
		p.fails = func() error { return nil }
		defer p.start()()
		<-time.After(time.Minute)
		if after, _ := p.times(); len(after) != len(before)+1 {
			t.Errorf("the next process has acted %d times\n%s", len(after)-len(before), p.log)
		}
	})
}

// A crash of the sidecar alone causes no action, and loses no change that came meanwhile if there is a state. Without one, the log says what is
// not known.
func TestChangeWhileAway(t *testing.T) {
	const because = `msg="restarted the containers" changed=/v/a restarts=1`
	for name, test := range map[string]struct {
		args   string // STATE stands for a directory
		change func(p *pod)
		acted  int
		says   string
	}{
		"with a state":    {"--url=http://127.0.0.1:9090/-/reload --state=STATE", nil, 1, "msg=acted"},
		"without":         {"--url=http://127.0.0.1:9090/-/reload", nil, 0, "without --state, a change while this container is away will not be noticed"},
		"an exit":         {"--exit-code=42 --state=STATE", nil, 1, because},
		"the first file":  {"--url=http://127.0.0.1/ --state=STATE", func(p *pod) { p.files = files{} }, 1, "msg=acted"},
		"a damaged state": {"--exit-code=42 --state=STATE", func(p *pod) { p.writeState(stateFile, `{"running":`) }, 1, "read the state"},
		// Without a hook, or if a kubelet that restarts starts the containers without it, they count as started after a while.
		"without a hook": {"--exit-code=42 --state=STATE --poll=1h", func(p *pod) { p.hookFails = true }, 1, because},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPod(t, strings.Fields("--dir=/v "+strings.ReplaceAll(test.args, "STATE", t.TempDir()))...)
				if test.change != nil {
					test.change(p)
				}
				for range 2 {
					stop := p.start()
					<-time.After(2 * longestWait)
					stop()
				}
				p.expectActed("")
				p.set("/v/a", "2")
				defer p.start()()
				<-time.After(time.Hour)
				if acted, _ := p.times(); len(acted) != test.acted || !strings.Contains(p.log.String(), test.says) {
					t.Errorf("acted %d times, want %d; the log, with %s:\n%s", len(acted), test.acted, test.says, p.log)
				}
			})
		})
	}
}

func (p *pod) writeState(name, text string) {
	must(p, os.WriteFile(filepath.Join(p.options.state, name), []byte(text), 0o600))
}

// Where the kernel reports nothing, a change is found by the next look.
func TestPoll(t *testing.T) {
	for _, poll := range []time.Duration{time.Second, 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/", "--settle=0s", "--poll="+poll.String())
			defer p.start()()
			<-time.After(poll / 2)
			p.mu.Lock()
			p.files["/v/a"] = "2" // without a notification
			p.mu.Unlock()
			<-time.After(time.Hour)
			if acted, _ := p.times(); len(acted) != 1 || acted[0] != poll {
				t.Errorf("--poll=%s: acted at %q s", poll, seconds(acted))
			}
		})
	}
}

// Restarts come 10 s after each other, then 20 s, up to 5 minutes, and after a long pause at once.
func TestBackoffOfRestarts(t *testing.T) {
	state := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--settle=0s", "--state="+state)
		stop := p.start()
		defer stop()
		synctest.Wait()
		for i := range 1000 { // for 1000 s
			p.set("/v/a", strconv.Itoa(i+2))
			<-time.After(time.Second)
		}
		p.expectActed("0 10 30 70 150 310 610 910")
		<-time.After(time.Hour)
		for _, is := range []string{"after a pause", "soon again"} {
			p.set("/v/a", is)
			<-time.After(time.Second)
		}
		<-time.After(time.Minute)
		p.expectActed("0 10 30 70 150 310 610 910 1210 4600 4610")
	})
}

// If the state cannot record the restart, nothing restarts: otherwise the next process would restart again.
func TestStateCannotBeSaved(t *testing.T) {
	state := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--state="+state)
		defer p.start()()
		synctest.Wait()
		must(t, os.Mkdir(filepath.Join(state, stateFile+".new"), 0o755))
		p.set("/v/a", "2")
		<-time.After(10 * time.Second)
		if _, starts := p.times(); len(starts) != 1 {
			t.Errorf("%d starts", len(starts))
		}
		must(t, os.Remove(filepath.Join(state, stateFile+".new")))
		<-time.After(time.Minute)
		if _, starts := p.times(); len(starts) != 2 {
			t.Errorf("%d starts after the mend", len(starts))
		}
	})
}

// A clock that is set back must not delay restarts until it has caught up.
func TestClockIsSetBack(t *testing.T) {
	now := time.Now()
	for back, want := range map[time.Duration]time.Duration{0: 20 * time.Second, time.Minute: 0, time.Hour: 0} {
		s := state{InRow: 2, LastAt: now}
		if got := s.nextRestartAt(now.Add(-back)).Sub(now.Add(-back)); got != want {
			t.Errorf("after %s back, it waits %s, not %s", back, got, want)
		}
	}
}

// A restart that was noted and did not happen, because the process has crashed between, is done by the next one.
func TestNotedRestartIsDone(t *testing.T) {
	dir := t.TempDir()
	must(t, (&state{Because: "/v/a"}).save(dir))
	if err := os.WriteFile(startedIn(dir), nil, 0o600); err != nil { // the containers run
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--settle=0s", "--state="+dir)
		defer p.start()()
		<-time.After(time.Hour)
		p.expectActed("0")
	})
}
