package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MemoryGroup is a memory cgroup of a test's own, below the one that this process is
// in. It is for one goroutine at a time.
type MemoryGroup struct{ dir string }

// ErrNoMemoryGroups says that this machine lets nobody limit memory by a cgroup of
// version 1, whatever is tried.
var ErrNoMemoryGroups = errors.New("no memory cgroup of version 1")

// NewMemoryGroup makes a group without a limit. The error matches ErrNoMemoryGroups
// where the machine has none. The caller must close it.
func NewMemoryGroup(name string) (*MemoryGroup, error) {
	mounts, err := Mounts()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	parent, err := ownMemoryGroup(mounts, string(own))
	if err != nil {
		return nil, err
	}
	g := &MemoryGroup{dir: filepath.Join(parent, fmt.Sprintf("%s-%d", name, os.Getpid()))}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a memory cgroup: %w", err)
	}
	return g, nil
}

// ownMemoryGroup returns the directory of the memory cgroup that a process is in, given
// its mounts and its /proc/PID/cgroup.
func ownMemoryGroup(mounts []Mount, cgroups string) (string, error) {
	for line := range strings.Lines(cgroups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 || !slices.Contains(strings.Split(parts[1], ","), "memory") {
			continue
		}
		for _, m := range mounts {
			if m.Type == "cgroup" && slices.Contains(strings.Split(m.SuperOptions, ","), "memory") {
				return filepath.Join(m.Target, parts[2]), nil
			}
		}
	}
	return "", ErrNoMemoryGroups
}

// Add moves a process into the group. What it has taken before stays counted elsewhere.
func (g *MemoryGroup) Add(pid int) error { return g.write("cgroup.procs", strconv.Itoa(pid)) }

// Limit sets the most bytes that the group may take; -1 is no limit.
func (g *MemoryGroup) Limit(bytes int64) error {
	return g.write("memory.limit_in_bytes", strconv.FormatInt(bytes, 10))
}

// Pause has a process that needs more than the limit wait, or see its system calls fail
// with ENOMEM, instead of being killed.
func (g *MemoryGroup) Pause() error { return g.write("memory.oom_control", "1") }

// Usage returns how many bytes are counted for the group.
func (g *MemoryGroup) Usage() (int64, error) { return g.read("memory.usage_in_bytes") }

// Refusals returns how often the limit was met.
func (g *MemoryGroup) Refusals() (int64, error) { return g.read("memory.failcnt") }

// Close removes the group, whose processes must have ended.
func (g *MemoryGroup) Close() error {
	// A process that has been reaped may be in it for a moment longer.
	return Poll(context.Background(), 5*time.Second, pollInterval, func() error { return os.Remove(g.dir) })
}

func (g *MemoryGroup) write(file, text string) error {
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0); err != nil {
		return fmt.Errorf("set %s of a memory cgroup to %s: %w", file, text, err)
	}
	return nil
}

func (g *MemoryGroup) read(file string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
