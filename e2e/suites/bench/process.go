package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/prometheus/procfs"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/process"
)

// subject is a process that is looked at from outside: the plugin, or a reference.
type subject struct {
	pid int
	// client reaches what the process serves at host.
	client *http.Client
	host   string
	// kill ends the process. It may be called again.
	kill func() error
}

// newReference starts a process of the reference program, which follows the first count ConfigMaps, and opens so many
// watches at once; 0: all. It ends with the scenario, if not before. The name is unique in the lab.
func (l *lab) newReference(name string, count, opening int, more ...string) (*subject, error) {
	socket := filepath.Join(l.dir, name+".sock")
	p, err := process.Start(process.Options{
		Path: l.bench.reference, Log: filepath.Join(l.dir, name+".log"),
		Args: append([]string{"-kubeconfig", l.kubeconfig, "-opening", strconv.Itoa(opening), "-count", strconv.Itoa(count), "-listen", socket}, more...),
	})
	if err != nil {
		return nil, err
	}
	l.onEnd(p.Kill)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	return &subject{p.PID(), &http.Client{Transport: transport}, "reference", p.Kill}, nil
}

// arrivals returns when each of the first objects came into the state that want has for it, or a later one. missing
// is how many have not. The process is a reference.
func (s *subject) arrivals(ctx context.Context, want []int) (at []time.Time, missing int, err error) {
	text, err := s.get(ctx, "/states")
	if err != nil {
		return nil, 0, fmt.Errorf("ask the reference: %w", err)
	}
	var known map[string]struct {
		State string
		At    int64 // nanoseconds of Unix time
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return nil, 0, fmt.Errorf("read the reference's answer: %w", err)
	}
	for i, least := range want {
		k := known[objectName(i)]
		if number, err := strconv.Atoi(k.State); err != nil || number < least {
			missing++
			continue
		}
		at = append(at, time.Unix(0, k.At))
	}
	return at, missing, nil
}

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
		err = errors.New("GET " + path + ": " + response.Status)
	}
	return body, err
}

// settle collects the process's garbage until it has given back what it gives back, and returns the bytes of memory
// that it holds.
func (s *subject) settle(ctx context.Context) (resident float64, err error) {
	const within = 0.005
	err = harness.Poll(ctx, time.Minute, time.Second, func() error {
		if _, err := s.get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
			return err
		}
		now, err := stat(s.pid)
		if err != nil {
			return err
		}
		before := resident
		if resident = float64(now.ResidentMemory()); math.Abs(before-resident) > within*resident {
			return fmt.Errorf("the memory of process %d does not settle: %.0f bytes", s.pid, resident)
		}
		return nil
	})
	return resident, err
}

// number returns what the group of a pattern matches in what the process serves.
func (s *subject) number(ctx context.Context, path, pattern string) (float64, error) {
	text, err := s.get(ctx, path)
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("%s has nothing that is like %s", path, pattern)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

func stat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}
