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

// A burst counts as one change, which waits until the burst is over, for at most 10 seconds.
func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		every time.Duration
		count int
		want  string
	}{
		"one change":   {time.Second, 1, "2"},
		"a burst":      {500 * time.Millisecond, 4, "3.5"},
		"an endless":   {900 * time.Millisecond, 15, "11 14.6"}, // from 1 s to 13.6 s
		"two of them":  {3 * time.Second, 2, "2 5"},
		"none at last": {time.Second, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/")
				stop := p.start()
				defer stop()
				time.Sleep(time.Second) //nolint:forbidigo // Fake time.
				for i := range c.count {
					p.set("/v/a", "change "+strconv.Itoa(i))
					time.Sleep(c.every) //nolint:forbidigo // Fake time.
				}
				time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
				p.expectActed(c.want)
			})
		})
	}
}

// A change that is reverted before it was acted on causes no action.
func TestTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/")
		defer p.start()()
		synctest.Wait()
		p.set("/v/a", "2")
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // Fake time.
		p.set("/v/a", "1")
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		p.expectActed("")
	})
}

// A failed action is retried with back-off and logged once. A new change is acted on at once.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/", "--settle=0s")
		p.fails = func() error { return errors.New("it is down") }
		defer p.start()()
		synctest.Wait()
		p.set("/v/a", "2")
		time.Sleep(100 * time.Second) //nolint:forbidigo // Fake time.
		p.expectActed("0 1 3 7 15 31 63")
		p.expectMetrics("pending 1", "actions_total{result=\"failed\"} 7", "actions_total{result=\"done\"} 0", "changes_total 1")
		if n := strings.Count(p.log.String(), "it is down"); n != 1 {
			t.Errorf("the log says %d times that it is down:\n%s", n, p.log)
		}
		p.fails = func() error { return nil }
		p.set("/v/a", "3")
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
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

// A change while the sidecar is away is acted on if there is a state. Without one, the log says what is not known.
func TestChangeWhileAway(t *testing.T) {
	for name, args := range map[string][]string{"with a state": {"--state=" + t.TempDir()}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPod(t, append(args, "--dir=/v", "--url=http://127.0.0.1:9090/-/reload")...)
				stop := p.start()
				<-time.After(time.Minute)
				stop()
				p.set("/v/a", "2")
				defer p.start()()
				<-time.After(time.Hour)
				if acted, _ := p.times(); len(acted) != len(args) {
					t.Errorf("acted %d times\n%s", len(acted), p.log)
				}
				if says := strings.Contains(p.log.String(), "without --state, a change while this container is away will not be noticed"); says != (args == nil) {
					t.Errorf("the log:\n%s", p.log)
				}
			})
		})
	}
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
			time.Sleep(time.Second) //nolint:forbidigo // Fake time.
		}
		p.expectActed("0 10 30 70 150 310 610 910")
		time.Sleep(time.Hour) //nolint:forbidigo // Fake time.
		for _, is := range []string{"after a pause", "soon again"} {
			p.set("/v/a", is)
			time.Sleep(time.Second) //nolint:forbidigo // Fake time.
		}
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		p.expectActed("0 10 30 70 150 310 610 910 1210 4600 4610")
	})
}

// A crash of the sidecar alone restarts nothing, and loses no change that came meanwhile.
func TestSidecarCrashes(t *testing.T) {
	state := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--state="+state)
		stop := p.start()
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		stop()
		stop = p.start()
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		stop()
		p.expectActed("")
		p.set("/v/a", "2")
		defer p.start()()
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		p.expectActed("121")
		if !strings.Contains(p.log.String(), `msg="restarted the containers" changed=/v/a restarts=1`) {
			t.Errorf("the process after the restart does not say why:\n%s", p.log)
		}
	})
}

// If the state cannot record the restart, nothing restarts: otherwise the next process would restart again.
func TestStateCannotBeSaved(t *testing.T) {
	state := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--state="+state)
		defer p.start()()
		synctest.Wait()
		if err := os.Mkdir(filepath.Join(state, stateFile+".new"), 0o755); err != nil {
			t.Fatal(err)
		}
		p.set("/v/a", "2")
		time.Sleep(10 * time.Second) //nolint:forbidigo // Fake time.
		if _, starts := p.times(); len(starts) != 1 {
			t.Errorf("%d starts", len(starts))
		}
		if err := os.Remove(filepath.Join(state, stateFile+".new")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		if _, starts := p.times(); len(starts) != 2 {
			t.Errorf("%d starts after the mend", len(starts))
		}
	})
}

// An unreadable state counts as none, and is logged.
func TestDamagedState(t *testing.T) {
	state := t.TempDir()
	if err := os.WriteFile(filepath.Join(state, stateFile), []byte(`{"running":`), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--state="+state)
		defer p.start()()
		time.Sleep(time.Minute) //nolint:forbidigo // Fake time.
		p.expectActed("")
		if !strings.Contains(p.log.String(), "read the state") {
			t.Errorf("the log does not say it:\n%s", p.log)
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
	if err := (&state{Because: "/v/a"}).save(dir); err != nil {
		t.Fatal(err)
	}
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

// Without a hook, or if a kubelet that restarts starts the containers without it, they count as started after a while, and no change is lost.
func TestChangeWhileAwayWithoutHook(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--state="+dir, "--poll=1h")
		p.hookFails = true
		stop := p.start()
		<-time.After(2 * longestWait)
		stop()
		p.set("/v/a", "2")
		defer p.start()()
		<-time.After(time.Hour)
		p.expectActed("61")
	})
}

// A volume without files is known, too: the first file is a change, also while the sidecar is away.
func TestFirstFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/", "--state="+dir)
		p.files = files{}
		stop := p.start()
		<-time.After(time.Minute)
		stop()
		p.set("/v/a", "1")
		defer p.start()()
		<-time.After(time.Hour)
		if acted, _ := p.times(); len(acted) != 1 {
			t.Errorf("acted %d times\n%s", len(acted), p.log)
		}
	})
}
