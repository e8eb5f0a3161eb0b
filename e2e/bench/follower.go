package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/refvol/refvol/e2e/harness/process"
)

// follower is the reference program in a process of its own, which follows the first
// objects of a lab.
type follower struct {
	process *process.Process
	http    *http.Client
}

// followed is what a follower knows of an object: its last state, and when that came.
type followed struct {
	State string `json:"state"`
	At    int64  `json:"at"` // nanoseconds of Unix time
}

// newFollower starts a program that follows count objects, each by one of kind: watch or
// reflector. It ends with stop, or with the scenario. The name is unique in the lab.
func (l *lab) newFollower(name, kind string, count int) (*follower, error) {
	dir := filepath.Join(l.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "socket")
	p, err := process.Start(process.Options{
		Path: l.bench.reference,
		Args: []string{
			"-kubeconfig=" + l.kubeconfig, "-namespace=" + namespace, "-prefix=" + objectPrefix,
			"-key=" + valueKey, "-kind=" + kind, "-count=" + strconv.Itoa(count), "-listen=" + socket,
		},
		Log: filepath.Join(dir, "log"),
	})
	if err != nil {
		return nil, err
	}
	l.onEnd(p.Kill)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &follower{process: p, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// states returns what the program knows of each object, by its name.
func (f *follower) states(ctx context.Context) (map[string]followed, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://reference/states", nil)
	if err != nil {
		return nil, err
	}
	response, err := f.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the reference: %w", err)
	}
	defer response.Body.Close()
	var states map[string]followed
	if err := json.NewDecoder(response.Body).Decode(&states); err != nil {
		return nil, fmt.Errorf("read the reference's answer: %w", err)
	}
	return states, nil
}

// all returns when each of the first count objects came into the state value(i), or an
// error if one is in another.
func (f *follower) all(ctx context.Context, count int, value func(i int) string) ([]time.Time, error) {
	states, err := f.states(ctx)
	if err != nil {
		return nil, err
	}
	at := make([]time.Time, count)
	for i := range at {
		s, ok := states[objectName(i)]
		if !ok || s.State != value(i) {
			return nil, fmt.Errorf("the reference has %s in state %q, want %q", objectName(i), s.State, value(i))
		}
		at[i] = time.Unix(0, s.At)
	}
	return at, nil
}

// stop ends the program.
func (f *follower) stop(ctx context.Context) error {
	f.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	if err := f.process.Stop(ctx, syscall.SIGTERM); err != nil {
		return err
	}
	if code := f.process.ExitCode(); code != 0 {
		return errors.New("the reference program ended with status " + strconv.Itoa(code))
	}
	return nil
}
