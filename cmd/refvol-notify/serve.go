package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// monitor is the state for probes, hooks and metrics. It is safe for concurrent use.
type monitor struct {
	wake chan<- struct{} // receives when the containers start
	// dir is that of --state, or "". hasStarted means that the containers had started with an earlier process when this one began.
	dir        string
	hasStarted bool

	mu       sync.Mutex
	readyAt  time.Time // zero until the files were looked at
	starting bool      // the hook has succeeded, so the kubelet starts the containers now
	pending  bool
	old      bool // the containers have older variables than the file want
	counts   counts
}

func (m *monitor) set(pending, old bool, c counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.readyAt.IsZero() {
		m.readyAt = time.Now()
	}
	m.pending, m.old, m.counts = pending, old, c
}

// In the directory of --state is the hook's socket until the containers may start. Then it is renamed, which needs no space. So each process
// knows whether the containers run with what an earlier one has compared.
func socketIn(state string) string { return filepath.Join(state, "ready.sock") }

func startedIn(state string) string { return filepath.Join(state, "started") }

// open removes the socket of an earlier process, and finds out whether the containers have started with one.
func (m *monitor) open(state string) {
	m.dir = state
	_, err := os.Lstat(startedIn(state))
	m.hasStarted = err == nil
	_ = os.Remove(socketIn(state))
}

// isStarting reports whether the containers start or run. A kubelet that restarts during the hook starts them without it.
func (m *monitor) isStarting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.readyAt.IsZero() && time.Since(m.readyAt) > longestWait {
		m.start()
	}
	return m.starting
}

// start notes that the containers may start from now on. It needs mu.
func (m *monitor) start() {
	if !m.starting && m.dir != "" && os.Rename(socketIn(m.dir), startedIn(m.dir)) != nil {
		_ = os.WriteFile(startedIn(m.dir), nil, 0o600) // somebody has removed the socket
	}
	m.starting = true
}

// restart notes that the containers start anew when this process has ended.
func (m *monitor) restart() error {
	if m.dir == "" {
		return nil
	}
	if err := os.Remove(startedIn(m.dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("note that the containers restart: %w", err)
	}
	return nil
}

// serve serves the socket for wait and the address of --http, until stop is called.
func (m *monitor) serve(o *options) (stop func(), err error) {
	servers := sync.WaitGroup{}
	var running []*http.Server
	stop = func() {
		for _, s := range running {
			_ = s.Close()
		}
		servers.Wait()
	}
	listen := func(network, address string, ready http.HandlerFunc) error {
		listener, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: m.handler(ready), ReadHeaderTimeout: 5 * time.Second}
		if unix, ok := listener.(*net.UnixListener); ok {
			unix.SetUnlinkOnClose(false)
		}
		running = append(running, server)
		servers.Go(func() { _ = server.Serve(listener) })
		return nil
	}
	if o.state != "" {
		m.open(o.state)
		if err := listen("unix", socketIn(o.state), m.answerWait); err != nil {
			return nil, fmt.Errorf("--state: %w: mount an emptyDir there that user %d may write to", err, os.Geteuid())
		}
	}
	if o.http != "" {
		if err := listen("tcp", o.http, m.readyz); err != nil {
			stop()
			return nil, fmt.Errorf("--http: %w", err)
		}
	}
	return stop, nil
}

func (m *monitor) handler(ready http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("/readyz", ready)
	mux.HandleFunc("/metrics", m.metrics)
	return mux
}

func (m *monitor) readyz(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.readyAt.IsZero() {
		http.Error(w, "not ready: the files have not been looked at", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

// answerWait is readyz for the postStart hook. After it succeeds, the containers start.
func (m *monitor) answerWait(w http.ResponseWriter, r *http.Request) {
	m.readyz(w, r)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.readyAt.IsZero() && !m.starting {
		m.start()
		signalTo(m.wake)
	}
}

func (m *monitor) metrics(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, last := m.counts, int64(0)
	gauge := map[bool]int64{true: 1}
	if !c.LastChangeAt.IsZero() {
		last = c.LastChangeAt.Unix()
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, row := range []struct {
		name, labels, kind, help string
		value                    int64
	}{
		{"changes_total", "", "counter", "Changes that were acted on; a burst is one.", c.Changes},
		{"actions_total", `{result="done"}`, "counter", "Actions by their result.", c.Done},
		{"actions_total", `{result="failed"}`, "", "", c.Failed},
		{"old_environments_total", "", "counter", "Starts with variables older than the file.", c.OldEnvironments},
		{"pending", "", "gauge", "1 while the application has not been notified of a change.", gauge[m.pending]},
		{"old_variables", "", "gauge", "1 while containers run with variables that are known to be older than the file.", gauge[m.old]},
		{"last_change_timestamp_seconds", "", "gauge", "When the last change was acted on; 0: never.", last},
	} {
		if row.kind != "" {
			_, _ = fmt.Fprintf(w, "# HELP refvol_notify_%s %s\n# TYPE refvol_notify_%s %s\n", row.name, row.help, row.name, row.kind)
		}
		_, _ = fmt.Fprintf(w, "refvol_notify_%s%s %d\n", row.name, row.labels, row.value)
	}
}

// The longest time that wait waits, and the pause between two tries. The kubelet does nothing else with the pod while its hook runs, not
// even its deletion.
const (
	longestWait = 30 * time.Second
	waitPause   = 20 * time.Millisecond
)

// waitUntilReady waits until the process with the same --state is ready. It is for a postStart hook: the kubelet starts the next container
// only after it.
func waitUntilReady(ctx context.Context, args []string, stdout io.Writer) error {
	var dir string
	f := flag.NewFlagSet("refvol-notify wait", flag.ContinueOnError)
	f.Func("state", "wait until the process with this `directory` as --state is ready, for at most 30 seconds",
		withFix(one(&dir, isAbsolute), "an absolute path, such as /run/refvol-notify"))
	if err := parseFlags(f, args, stdout); err != nil {
		return err
	}
	if dir == "" {
		return usagef("wait needs --state: the directory that the other process has")
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socketIn(dir))
			if errors.Is(err, os.ErrNotExist) { // an earlier answer was lost
				return (&net.Dialer{}).DialContext(ctx, "unix", startedIn(dir))
			}
			return conn, err
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	for answered := false; ; {
		err := askReady(ctx, client)
		// Only a socket that is gone, or that nobody listens on, says so. On a busy node a request may also fail by its time limit.
		hasEnded := answered && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist))
		if err == nil {
			return nil
		}
		if hasEnded || pause(ctx, waitPause) != nil {
			return fmt.Errorf("wait for the process with --state=%s: %w", dir, err)
		}
		answered = answered || errors.Is(err, errNotReady)
	}
}

var errNotReady = errors.New("not ready")

func askReady(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errNotReady
	}
	return nil
}
