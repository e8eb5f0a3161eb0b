package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// role makes a process of this binary do something else than tests.
const role = "REFVOL_NOTIFY_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(sandbox.Main(m))
	case "target":
		os.Exit(target())
	case "signaller":
		os.Exit(signaller())
	case "program without inotify":
		if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
		fallthrough
	default:
		main()
	}
}

func self(ctx context.Context, as string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), role+"="+as)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// liveVolume is a volume on tmpfs that pkg/writer writes.
type liveVolume struct {
	testing.TB
	path   string
	root   *os.Root
	writer *writer.Writer
}

func newVolume(t testing.TB) *liveVolume {
	t.Helper()
	path := must.Get(os.MkdirTemp("/dev/shm", "refvol-notify-"))(t)
	root := must.Get(os.OpenRoot(path))(t)
	t.Cleanup(func() { root.Close(); os.RemoveAll(path) })
	return &liveVolume{t, path, root, writer.New(writer.Options{})}
}

// write shows files with these pairs of path and content.
func (v *liveVolume) write(pairs ...string) {
	v.Helper()
	tree := &volume.Payload{DirMode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
	for pair := range slices.Chunk(pairs, 2) {
		tree.Files = append(tree.Files, volume.File{Path: pair[0], Data: []byte(pair[1]), Mode: 0o400})
	}
	must.Get(v.writer.Write(v.Context(), v.root, tree))(v)
}

func (v *liveVolume) at(name string) string { return filepath.Join(v.path, name) }

func mustParse(t testing.TB, args ...string) *options {
	t.Helper()
	return must.Get(parse(args, io.Discard))(t)
}

func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second) // so that the test needs notifications, and not the looks without them
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(what)
		}
	}
}

type started struct {
	log  *leak.Log
	stop func() int
	done <-chan int
}

// start runs the program until the test ends, and waits until it watches.
func start(t testing.TB, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	p := &started{log: &leak.Log{}, done: done}
	go func() { done <- run(ctx, args, io.Discard, p.log) }()
	p.stop = sync.OnceValue(func() int { cancel(); return <-done })
	t.Cleanup(func() { cancel() })
	waitFor(t, "it watches: "+strings.Join(args, " "), func() bool { return strings.Contains(p.log.String(), "msg=watches") || len(done) > 0 })
	return p
}

// pod is a pod in fake time, whose containers run as long as the sidecar does not exit.
type pod struct {
	*testing.T
	options *options
	began   time.Time
	log     *leak.Log
	wake    chan struct{}
	monitor *monitor

	mu        sync.Mutex
	files     files
	variables map[string]string
	// acted has the times of all actions, starts those of all starts of the sidecar.
	acted, starts []time.Duration
	fails         func() error
	// unreadable is why the files can't be read, or nil.
	unreadable error
	// hookFails makes the postStart hook fail, so that the kubelet starts no other container.
	hookFails bool
	// kill ends the present process. Only if it may crash, its end is no error.
	kill     context.CancelFunc
	mayCrash bool
	// started and restarted, if not nil, are called when the containers may start, and when all end.
	started   func(ctx context.Context)
	restarted func()
}

func newPod(t *testing.T, args ...string) *pod {
	return &pod{
		T: t, options: mustParse(t, args...), began: time.Now(), log: &leak.Log{}, wake: make(chan struct{}, 1),
		files: files{"/v/a": "1"}, variables: map[string]string{}, fails: func() error { return nil },
	}
}

func (p *pod) set(name, is string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files[name] = is
	signalTo(p.wake)
}

// setVariables sets the kubelet's variables, with blanks between them.
func (p *pod) setVariables(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.variables = map[string]string{}
	for _, variable := range strings.Fields(text) {
		name, value, _ := strings.Cut(variable, "=")
		p.variables[name] = value
	}
}

func (p *pod) times() (acted, starts []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.acted), slices.Clone(p.starts)
}

func (p *pod) process() *notifier {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts = append(p.starts, time.Since(p.began))
	p.monitor = &monitor{wake: p.wake}
	if p.options.state != "" {
		p.monitor.open(p.options.state)
		if err := os.WriteFile(socketIn(p.options.state), nil, 0o600); err != nil {
			p.Error(err)
		}
	}
	n := &notifier{options: p.options, log: slog.New(slog.NewTextHandler(p.log, nil)), m: p.monitor, said: map[string]string{}}
	if p.options.env != "" {
		var environ []string
		for name, value := range p.variables {
			environ = append(environ, name+"="+value)
		}
		n.env = newEnvironment(p.options.env, p.options.envPrefix, environ)
	}
	n.look = func() (files, error) {
		if p.options.env != "" {
			return look(p.options, func(string) {})
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return maps.Clone(p.files), p.unreadable
	}
	n.act = func(context.Context) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.acted = append(p.acted, time.Since(p.began))
		if err := p.fails(); err != nil || p.options.exitCode == 0 {
			return err
		}
		return &exitError{p.options.exitCode}
	}
	n.wait = func(ctx context.Context, longest time.Duration) error {
		select {
		case <-p.wake:
		case <-time.After(longest):
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	}
	return n
}

// hook lets the containers start once a process is ready, as its postStart hook does.
func (p *pod) hook(ctx context.Context, m *monitor) {
	for {
		m.mu.Lock()
		if !m.readyAt.IsZero() && ctx.Err() == nil {
			m.start()
		}
		isOver := m.starting
		m.mu.Unlock()
		if isOver {
			signalTo(p.wake)
			if p.started != nil {
				p.started(ctx)
			}
			return
		}
		if pause(ctx, waitPause) != nil {
			return
		}
	}
}

// run starts one process after another, as the kubelet does, until ctx ends.
func (p *pod) run(ctx context.Context) {
	for ctx.Err() == nil {
		n := p.process()
		alive, kill := context.WithCancel(ctx)
		p.mu.Lock()
		p.kill = kill
		p.mu.Unlock()
		if !p.hookFails {
			go p.hook(alive, n.m)
		}
		err := n.run(alive)
		kill()
		var end *exitError
		switch {
		case errors.As(err, &end):
			if err := n.m.restart(); err != nil {
				p.Error(err)
			}
			if p.restarted != nil {
				p.restarted()
			}
		case p.mayCrash && ctx.Err() == nil:
			_ = pause(ctx, time.Second)
		case ctx.Err() == nil:
			p.Error(err)
			return
		}
	}
}

// start runs the pod until stop is called.
func (p *pod) start() (stop func()) {
	ctx, cancel := context.WithCancel(p.Context())
	var group sync.WaitGroup
	group.Go(func() { p.run(ctx) })
	return func() { cancel(); group.Wait() }
}

func seconds(all []time.Duration) string {
	var text []string
	for _, d := range all {
		text = append(text, fmt.Sprintf("%.4g", d.Seconds()))
	}
	return strings.Join(text, " ")
}
