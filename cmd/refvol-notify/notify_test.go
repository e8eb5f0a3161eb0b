package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/helppage"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
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
		if strings.Contains(p.metrics(), "last_change_timestamp_seconds 0\n") {
			t.Errorf("no time of the last change:\n%s", p.metrics())
		}
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
		"with a state":   {"--url=http://127.0.0.1:9090/-/reload --state=STATE", nil, 1, "msg=acted"},
		"without":        {"--url=http://127.0.0.1:9090/-/reload", nil, 0, "without --state, a change while this container is away will not be noticed"},
		"an exit":        {"--exit-code=42 --state=STATE", nil, 1, because},
		"the first file": {"--url=http://127.0.0.1/ --state=STATE", func(p *pod) { p.files = files{} }, 1, "msg=acted"},
		"a damaged state": {"--exit-code=42 --state=STATE", func(p *pod) {
			must.Do(p, os.WriteFile(filepath.Join(p.options.state, stateFile), []byte(`{"running":`), 0o600))
		}, 1, "read the state"},
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

// The application starts although the files can't be read. Once they can be, changes are acted on.
func TestStartWithoutFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--url=http://127.0.0.1/", "--settle=0s")
		p.unreadable = errors.New("no right to the directory")
		var started atomic.Bool
		p.started = func(context.Context) { started.Store(true) }
		defer p.start()()
		<-time.After(time.Minute)
		if !started.Load() || strings.Count(p.log.String(), "no right to the directory") != 1 {
			t.Errorf("the application has started: %t\n%s", started.Load(), p.log)
		}
		p.mu.Lock()
		p.unreadable = nil
		p.mu.Unlock()
		<-time.After(2 * time.Second)
		p.set("/v/a", "2")
		<-time.After(time.Minute)
		p.expectActed("62")
	})
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
		must.Do(t, os.Mkdir(filepath.Join(state, stateFile+".new"), 0o755))
		p.set("/v/a", "2")
		<-time.After(10 * time.Second)
		if _, starts := p.times(); len(starts) != 1 {
			t.Errorf("%d starts", len(starts))
		}
		must.Do(t, os.Remove(filepath.Join(state, stateFile+".new")))
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
	must.Do(t, (&state{Because: "/v/a"}).save(dir))
	must.Do(t, os.WriteFile(startedIn(dir), nil, 0o600)) // the containers run
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t, "--dir=/v", "--exit-code=42", "--settle=0s", "--state="+dir)
		defer p.start()()
		<-time.After(time.Hour)
		p.expectActed("0")
	})
}

// Each wrong command line fails with status 2 and a text with the flag, the value and the fix.
func TestWrongFlags(t *testing.T) {
	const (
		directory = "the absolute path of a directory, such as /etc/app"
		pattern   = "a path in the volume, with * and ? for what may vary, such as conf.d/*.conf"
		state     = "--exit-code needs --state: a directory of an emptyDir with medium: Memory, for what the containers run with"
		actions   = "--url is one action, --exit-code or --signal another: remove one of them"
		url       = "such as http://127.0.0.1:9090/-/reload"
		env       = "the directory of the volume with want and applied"
		more      = " --help lists the flags"
	)
	wants := map[string]string{
		"":                                    "nothing to watch: add --dir with the directory of a volume, or --env",
		"--url=http://127.0.0.1/":             "nothing to watch: add --dir with the directory of a volume, or --env",
		"--dir=/a":                            "nothing to do after a change: add --exit-code with --state, --signal with --process, or --url",
		"--dir=/a --settel=1s":                "flag provided but not defined: -settel; refvol-notify" + more,
		"--url":                               "flag needs an argument: -url; refvol-notify" + more,
		"--dir=/a extra":                      `unexpected argument "extra": each flag begins with --`,
		"--env-prefix=a_":                     "--env-prefix needs --env: " + env,
		"--exit-code=42":                      state,
		"--signal=HUP":                        "--signal needs --process: the name of the program to signal",
		"--process=nginx":                     "--process needs --signal: such as HUP",
		"--grace=1s":                          "--grace needs --signal: such as TERM",
		"--signal=HUP --process=x --grace=1s": "--grace needs --exit-code: such as 42",
		"--env=/e":                            "--env needs --exit-code: only a restart changes a process's variables",
		"--env=/e --exit-code=42 --state=/s":  "--env needs --env-prefix: the prefix of the names in this container's env and envFrom, such as refvol_",
		"--patience=1m":                       "--patience needs --env: " + env,
		"--method=GET":                        "--method needs --url: " + url,
		"--status=204":                        "--status needs --url: " + url,
		"--timeout=1s":                        "--timeout needs --url: " + url,
		"--dir=/a --url=http://[::1]/ --exit-code=4":                state,
		"--dir=/a --url=http://[::1]/ --exit-code=4 --state=/s":     actions,
		"--dir=/a --url=http://localhost/ --signal=HUP --process=x": actions,
		"wait":           "wait needs --state: the directory that the other process has",
		"wait --state=x": `invalid value "x" for flag -state: write an absolute path, such as /run/refvol-notify; refvol-notify wait` + more,
		"wait --foo":     "flag provided but not defined: -foo; refvol-notify wait" + more,
	}
	for _, wrong := range [][]string{ // a flag, what to write, and wrong values
		{"dir", directory, "etc/app", "/a/"},
		{"env", directory, "want"},
		{"state", directory, ""},
		{"only", pattern, "["},
		{"ignore", pattern, "/etc/x"},
		{"settle", "a time up to 10s, such as 2s", "soon", "11s", "-1s"},
		{"patience", "a time up to 24h, such as 6m", "5"},
		{"poll", "a time from 100ms to 1h, such as 1s", "10ms"},
		{"env-prefix", "letters, digits and underscores, such as refvol_", "a-b", "a/b", "a:", "@a", "a["},
		{"grace", "a time up to 1h, such as 30s", "2h"},
		{"timeout", "a time up to 10m, such as 30s", "11m"},
		{"exit-code", "a number from 3 to 125, such as 42: 1 and 2 are this program's own failures", "1", "2", "126", "x"},
		{"signal", "the name of a signal, such as HUP, TERM or USR1", "RELOAD"},
		{"process", "the name of the program's file without directories, such as nginx", "/usr/sbin/nginx"},
		{
			"url", "a URL with http:// and 127.0.0.1, [::1] or localhost, " + url,
			"http://example.com/", "http://127.0.0.1.example.com", "http://u:p@127.0.0.1/", "https://127.0.0.1/",
		},
		{"method", "a method of HTTP in capital letters, such as POST", "post"},
		{"status", "a status from 100 to 599, or a range, such as 200-299", "99", "600", "300-200", "2xx"},
		{"http", "a port after a colon, with or without an address before it, such as :9811", "9811", ":0", ":port"},
	} {
		for _, value := range wrong[2:] {
			wants["--"+wrong[0]+"="+value] = fmt.Sprintf("invalid value %q for flag -%s: write %s; refvol-notify%s", value, wrong[0], wrong[1], more)
		}
	}
	for args, want := range wants {
		var stdout, stderr leak.Log
		status := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		if got := stderr.String(); status != 2 || got != "refvol-notify: "+want+"\n" || stdout.String() != "" {
			t.Errorf("%s: status %d, %s", args, status, got)
		}
	}
}

// TestRightFlags: the log describes the action. A query may hold a secret, which must not be logged.
func TestRightFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--dir=/a --url=http://127.0.0.1/x?token=secret":                                                        "POST http://127.0.0.1/x",
		"--dir=/a --dir=/b --url=http://127.0.0.1:9090/-/r --method=PUT --status=204 --timeout=1s --http=:9811": "PUT http://127.0.0.1:9090/-/r",
		"--dir=/a --url=http://[::1]:9090/ --state=/s --settle=10s --poll=100ms":                                "POST http://[::1]:9090/",
		"--dir=/a --url=http://127.0.0.1/ --status=100-599 --http=:1":                                           "POST http://127.0.0.1/",
		"--dir=/a --signal=SIGUSR1 --process=nginx":                                                             "send USR1 to nginx",
		"--dir /a --signal hup --process nginx --only *.conf --ignore a.conf":                                   "send HUP to nginx",
		"--env=/e --env-prefix=refvol_ --state=/s --exit-code=42 --patience=6m":                                 "exit 42",
		"--env=/e --env-prefix=azAZ09_ --state=/s --exit-code=3":                                                "exit 3",
		"--dir=/a --state=/s --exit-code=125 --signal=TERM --process=app --grace=0s":                            "send TERM to app, then exit 125",
	} {
		if got := mustParse(t, strings.Fields(args)...).action(); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// TestDefaults: the times are those that the usage says.
func TestDefaults(t *testing.T) {
	o := mustParse(t, "--dir=/a", "--url=http://127.0.0.1/")
	got := []time.Duration{o.patience, o.settle, o.poll, o.grace, o.timeout}
	if want := []time.Duration{time.Minute, time.Second, 30 * time.Second, 30 * time.Second, 10 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of both commands.
func TestCommandsPage(t *testing.T) {
	var commands []helppage.Command
	for _, args := range [][]string{{"--help"}, {"wait", "--help"}} {
		var b bytes.Buffer
		if status := run(t.Context(), args, &b, io.Discard); status != 0 {
			t.Fatalf("%q ends with %d", args, status)
		}
		line := "refvol-notify"
		if len(args) > 1 {
			line += " " + args[0]
		}
		commands = append(commands, helppage.Command{Line: line, Help: b.String()})
	}
	helppage.Check(t, "../../docs/commands.md", "refvol-notify", commands, *update)
}
