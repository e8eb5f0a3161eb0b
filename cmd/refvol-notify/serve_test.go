package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

// The postStart hook waits until the files were read, so that the application does not start before. If it is ended, it has no success.
func TestWait(t *testing.T) {
	state := t.TempDir()
	args := []string{"wait", "--state=" + state}
	wake := make(chan struct{}, 1)
	m := &monitor{wake: wake}
	ended, end := context.WithCancel(t.Context())
	end()
	var log leak.Log
	if status := run(ended, args, &log, &log); status != 1 || log.String() == "" {
		t.Errorf("without a process: status %d, %s", status, &log)
	}
	done := make(chan int)
	go func() { done <- run(t.Context(), args, os.Stdout, os.Stderr) }()
	var count atomic.Int64
	hook := serveHook(t, m, state, func() {
		if count.Add(1) == 2 {
			panic(http.ErrAbortHandler) // a request that fails, as by its time limit, is not the end of the process
		}
	})
	hook.expectAsked(3, done)
	if m.isStarting() || len(wake) != 0 {
		t.Error("the containers start before it is ready")
	}
	m.set(false, false, counts{LastChangeAt: time.Now()})
	if status := <-done; status != 0 || !m.isStarting() || len(wake) != 1 {
		t.Errorf("once it is ready: status %d, %d signals", status, len(wake))
	}
}

// hookServer serves a monitor at the socket of a state until the test ends.
type hookServer struct {
	*testing.T
	*http.Server
	listener net.Listener
	asked    chan struct{}
}

// serveHook calls before for each request of the hook.
func serveHook(t *testing.T, m *monitor, state string, before func()) *hookServer {
	t.Helper()
	listener := must.Get(net.Listen("unix", socketIn(state)))(t)
	h := &hookServer{T: t, listener: listener, asked: make(chan struct{}, 1)}
	h.Server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: m.handler(func(w http.ResponseWriter, r *http.Request) {
		before()
		m.answerWait(w, r)
		signalTo(h.asked)
	})}
	go func() { _ = h.Serve(listener) }()
	t.Cleanup(func() { _ = h.Server.Close() })
	return h
}

func (h *hookServer) expectAsked(times int, done <-chan int) {
	h.Helper()
	for range times {
		select {
		case <-h.asked:
		case status := <-done:
			h.Fatalf("before it is ready, the hook ends with %d", status)
		}
	}
}

// The hook ends with the process that it waits for. The socket of a process that was killed stays.
func TestWaitEndsWithTheProcess(t *testing.T) {
	for name, isKilled := range map[string]bool{"ended": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			hook := serveHook(t, &monitor{}, state, func() {})
			hook.listener.(*net.UnixListener).SetUnlinkOnClose(!isKilled)
			done := make(chan int)
			var log leak.Log
			begin := time.Now()
			go func() { done <- run(t.Context(), []string{"wait", "--state=" + state}, &log, &log) }()
			hook.expectAsked(2, done) // it has the answer to the first one
			must.Do(t, hook.Server.Close())
			if status := <-done; status != 1 || time.Since(begin) > longestWait*2/3 {
				t.Errorf("status %d after %s: %s", status, time.Since(begin), &log)
			}
		})
	}
}

// A kubelet that restarts during the hook starts the containers, and nobody says so.
func TestStartWithoutHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.set(false, false, counts{})
		<-time.After(longestWait)
		if m.isStarting() {
			t.Error("the containers start while a hook may run")
		}
		<-time.After(time.Second)
		if !m.isStarting() {
			t.Error("the containers never start")
		}
	})
}

// If it cannot listen, the program ends and says what to do.
func TestCannotListen(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	for args, want := range map[string]string{
		"--http=" + listener.Addr().String():               "--http: ",
		"--state=" + filepath.Join(t.TempDir(), "missing"): "mount an emptyDir there that user",
	} {
		var log leak.Log
		status := run(t.Context(), append([]string{"--dir=/a", "--url=http://127.0.0.1/"}, args), &log, &log)
		if status != 1 || !strings.Contains(log.String(), want) {
			t.Errorf("%s: status %d, %s", args, status, &log)
		}
	}
}

// The endpoints answer. A change ends the program with the code. The next process says why, and continues to watch.
func TestExitCode(t *testing.T) {
	v, state := newVolume(t), t.TempDir()
	v.write("a", "1")
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	at := listener.Addr().String()
	must.Do(t, listener.Close())
	args := []string{"--dir=" + v.path, "--exit-code=42", "--state=" + state, "--settle=0s", "--http=" + at}
	p := start(t, args...)
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n", "/metrics": "refvol_notify_pending 0\n"} {
		waitFor(t, path+" says "+want, func() bool {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			response, err := client.Get("http://" + at + path)
			must.Do(t, err)
			defer response.Body.Close()
			text := must.Get(io.ReadAll(response.Body))(t)
			return response.StatusCode == http.StatusOK && strings.Contains(string(text), want)
		})
	}
	v.write("a", "2")
	if status := <-p.done; status != 42 {
		t.Fatalf("status %d\n%s", status, p.log)
	}
	p = start(t, args...)
	if want := `msg="restarted the containers" changed=` + v.at("a"); !strings.Contains(p.log.String(), want) {
		t.Errorf("the log does not say why:\n%s", p.log)
	}
	if status := p.stop(); status != 0 {
		t.Errorf("status %d after its context's end", status)
	}
}

// If it can't note that the containers restart, it does not restart them: the next process would take them for those that run now.
func TestRestartCannotBeNoted(t *testing.T) {
	v, state := newVolume(t), t.TempDir()
	v.write("a", "1")
	p := start(t, "--dir="+v.path, "--exit-code=42", "--state="+state, "--settle=0s")
	must.Do(t, os.MkdirAll(filepath.Join(startedIn(state), "full"), 0o755))
	v.write("a", "2")
	if status := <-p.done; status != 1 || !strings.Contains(p.log.String(), "note that the containers restart: ") {
		t.Errorf("status %d\n%s", status, p.log)
	}
}

// A recorded restart happens even if the process is asked to end at that moment. Otherwise its change would be lost.
func TestNotedRestartHappens(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status := exitStatus(ctx, &exitError{42}, io.Discard); status != 42 {
		t.Errorf("status %d", status)
	}
	if status := exitStatus(ctx, ctx.Err(), io.Discard); status != 0 {
		t.Errorf("status %d without a restart", status)
	}
}

// The program only links the standard library and golang.org/x/sys, so its image stays small.
func TestWhatIsLinked(t *testing.T) {
	output := must.Get(exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output())(t)
	if got := strings.Join(strings.Fields(string(output)), " "); got != "golang.org/x/sys/unix github.com/refvol/refvol/cmd/refvol-notify" {
		t.Errorf("it links %s", got)
	}
}

// TestLostAnswer: the hook's first answer is lost, as on a node without CPU time. The hook asks again, at the socket with its new name. That
// the containers start is noted also if somebody has removed the socket.
func TestLostAnswer(t *testing.T) {
	dir := t.TempDir()
	m := &monitor{wake: make(chan struct{}, 1)}
	defer must.Get(m.serve(&options{state: dir}))(t)()
	m.set(false, false, counts{})
	m.answerWait(httptest.NewRecorder(), nil)
	must.Do(t, waitUntilReady(t.Context(), []string{"--state=" + dir}, io.Discard))
	without := &monitor{dir: t.TempDir()}
	without.start()
	must.Get(os.Lstat(startedIn(without.dir)))(t)
}

func TestRequest(t *testing.T) {
	secret := leak.NewValue()
	elsewhere, reached := called(t)
	var got atomic.Value
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Method + " " + r.URL.Path)
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		case "/bad":
			http.Error(w, secret, http.StatusInternalServerError)
		case "/slow":
			<-release
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	for args, want := range map[string]string{
		"--url=" + server.URL + "/ok":                                   "",
		"--url=" + server.URL + "/none --status=204":                    "",
		"--url=" + server.URL + "/ok --status=204":                      "status 200 is not from 204 to 204: set --status, if it means success",
		"--url=" + server.URL + "/bad":                                  "status 500 is not from 200 to 299: set --status, if it means success",
		"--url=" + server.URL + "/redirect":                             "status 307 is not from 200 to 299: set --status, if it means success",
		"--url=" + server.URL + "/slow?x=" + secret + " --timeout=50ms": "context deadline exceeded",
		"--url=" + server.URL + "/ok --method=PUT":                      "",
	} {
		err := request(t.Context(), mustParse(t, append(strings.Fields(args), "--dir=/a")...))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, not %q", args, err, want)
		}
		must.Do(t, leak.Check("the error", fmt.Sprint(err)))
		if strings.Contains(args, "PUT") && got.Load() != "PUT /ok" {
			t.Errorf("the server got %v", got.Load())
		}
	}
	if reached.Load() != 0 {
		t.Errorf("%d requests reached another server", reached.Load())
	}
}

// localhost is never looked up, and is tried with both addresses. Other hosts get no connection.
func TestDialLoopback(t *testing.T) {
	listener := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must.Do(t, err)
	second, err := net.Listen("tcp6", "[::1]:0")
	if err == nil { // a machine without IPv6 has no second address
		defer second.Close()
		_, port, _ := net.SplitHostPort(second.Addr().String())
		must.Do(t, must.Get(dialLoopback(t.Context(), "tcp", "localhost:"+port))(t).Close())
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "localhost": true, "10.1.2.3": false, "example.com": false, "0.0.0.0": false} {
		conn, err := dialLoopback(context.Background(), "tcp", net.JoinHostPort(host, port))
		if err == nil {
			conn.Close()
		}
		if (err == nil) != want || !want && !strings.Contains(err.Error(), "is not a loopback address") {
			t.Errorf("%s: %v", host, err)
		}
	}
}
