package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/process"
)

// subject is a process that is looked at from outside: the plugin, or a reference.
type subject struct {
	pid int
	// client reaches what the process serves.
	client *http.Client
	host   string
}

// get returns what the process serves at a path.
func (s *subject) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, response.Status)
	}
	return body, err
}

// profiling is what a plugin is started with so that its footprint can be had.
const profiling = "--profiling-address=127.0.0.1:0"

// noKeepAlive is a transport that leaves no connection behind.
func noKeepAlive() *http.Transport { return &http.Transport{DisableKeepAlives: true} }

// subject returns the node's plugin, which must serve its profiles.
func (n *node) subject() (*subject, error) {
	address, err := n.ProfilingAddress()
	if err == nil && address == "" {
		err = fmt.Errorf("the plugin serves no profiles\n%s", n.LogTail())
	}
	return &subject{pid: n.PID(), client: &http.Client{Transport: noKeepAlive()}, host: address}, err
}

// reference is a process of the reference program.
type reference struct {
	*subject
	process *process.Process
}

// newReference starts a process that follows the first count ConfigMaps, each by one of
// kind: reflector or bounded. It ends with close, or with the scenario. The name is unique in
// the lab.
func (l *lab) newReference(name, kind string, count int) (*reference, error) {
	socket := filepath.Join(l.dir, name+".sock")
	p, err := process.Start(process.Options{
		Path: l.bench.reference, Log: filepath.Join(l.dir, name+".log"),
		Args: []string{
			"-kubeconfig", l.kubeconfig, "-kind", kind, "-count", strconv.Itoa(count),
			"-namespace", namespace, "-prefix", objectPrefix, "-key", valueKey, "-listen", socket,
		},
	})
	if err != nil {
		return nil, err
	}
	l.onEnd(p.Kill)
	transport := noKeepAlive()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &reference{&subject{p.PID(), &http.Client{Transport: transport}, "reference"}, p}, nil
}

func (r *reference) close() error { return r.process.Kill() }

// learnt is the last state of an object that a reference has seen, and when.
type learnt struct {
	State string `json:"state"`
	At    int64  `json:"at"` // nanoseconds of Unix time
}

// states returns what the reference knows, by the names of the objects.
func (r *reference) states(ctx context.Context) (map[string]learnt, error) {
	text, err := r.get(ctx, "/states")
	if err != nil {
		return nil, fmt.Errorf("ask the reference: %w", err)
	}
	var states map[string]learnt
	if err := json.Unmarshal(text, &states); err != nil {
		return nil, fmt.Errorf("read the reference's answer: %w", err)
	}
	return states, nil
}

// all returns when object i came into value(i), for each of the first count objects, or an
// error if one is in another state.
func (r *reference) all(ctx context.Context, count int, value func(i int) string) ([]time.Time, error) {
	states, err := r.states(ctx)
	if err != nil {
		return nil, err
	}
	at := make([]time.Time, count)
	for i := range at {
		s, ok := states[objectName(i)]
		if want := value(i); !ok || s.State != want {
			return nil, fmt.Errorf("the reference has %s in state %q, want %q", objectName(i), s.State, want)
		}
		at[i] = time.Unix(0, s.At)
	}
	return at, nil
}

// await waits until object i is in value(i), for each of the first count objects, and
// returns when each came into it. It asks seldom: the reference notes the times by itself, and answering
// takes its time.
func (r *reference) await(ctx context.Context, count int, value func(i int) string) (at []time.Time, err error) {
	err = harness.Poll(ctx, soon, 200*time.Millisecond, func() (err error) {
		at, err = r.all(ctx, count, value)
		return err
	})
	return at, err
}

// footprint is what a process takes at rest.
type footprint struct {
	// resident is what it holds of the machine's memory, heap what its objects take, and
	// stacks what its goroutines do, in bytes.
	resident, heap, stacks  float64
	goroutines, connections int
}

var (
	heapInUse  = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)
	stackInUse = regexp.MustCompile(`(?m)^# Stack = (\d+) `)
	goroutines = regexp.MustCompile(`(?m)^goroutine profile: total (\d+)$`)
)

// numberIn returns the number that the group of a pattern matches in a profile.
func numberIn(profile []byte, pattern *regexp.Regexp) (float64, error) {
	found := pattern.FindSubmatch(profile)
	if found == nil {
		return 0, fmt.Errorf("a profile has nothing that is like %s", pattern)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

// footprint collects the process's garbage, waits until it has given back what it gives
// back, and returns what is left.
func (s *subject) footprint(ctx context.Context) (footprint, error) {
	resident, err := s.settle(ctx)
	if err != nil {
		return footprint{}, err
	}
	f := footprint{resident: resident}
	heap, err := s.get(ctx, "/debug/pprof/heap?debug=1&gc=1")
	if err != nil {
		return f, err
	}
	all, err := s.get(ctx, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return f, err
	}
	var count float64
	for _, field := range []struct {
		into *float64
		text []byte
		at   *regexp.Regexp
	}{{&f.heap, heap, heapInUse}, {&f.stacks, heap, stackInUse}, {&count, all, goroutines}} {
		if *field.into, err = numberIn(field.text, field.at); err != nil {
			return f, err
		}
	}
	f.goroutines = int(count)
	f.connections, err = connections(s.pid)
	return f, err
}

// settle collects garbage until that changes the resident memory no more.
func (s *subject) settle(ctx context.Context) (float64, error) {
	const (
		pause  = time.Second
		within = 0.005
		tries  = 60
	)
	before := math.Inf(1)
	for range tries {
		if _, err := s.get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
			return 0, err
		}
		now, err := residentBytes(s.pid)
		if err != nil {
			return 0, err
		}
		if math.Abs(before-now) <= within*now {
			return now, nil
		}
		before = now
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
	}
	return 0, fmt.Errorf("the memory of process %d doesn't settle: %.0f bytes", s.pid, before)
}
