package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MemoryGroup is a memory cgroup of a test's own, of version 1 or 2, near the one that this process is in. It is for
// one goroutine at a time.
type MemoryGroup struct {
	dir string
	v2  bool
}

// ErrNoMemoryGroups says that no cgroup here lets its children limit memory, whoever makes them.
var ErrNoMemoryGroups = errors.New("no cgroup with a memory controller for its children")

// controllersFile names the controllers that the children of a group of version 2 have.
const controllersFile = "cgroup.subtree_control"

// NewMemoryGroup makes a group without a limit. The error matches ErrNoMemoryGroups where this process has no place
// for one. The caller must close it.
func NewMemoryGroup(name string) (*MemoryGroup, error) {
	parent, err := memoryParent()
	if err != nil {
		return nil, err
	}
	// Programs in different sandboxes have the same numbers.
	dir, err := os.MkdirTemp(parent.dir, name+"-")
	if err != nil {
		return nil, fmt.Errorf("make a memory cgroup: %w", err)
	}
	return &MemoryGroup{dir, parent.v2}, nil
}

// ownGroup is a line of /proc/PID/cgroup: that of the memory controller of version 1, or that of version 2.
var ownGroup = regexp.MustCompile(`(?m)^(?:\d+:(?:[^:\n]*,)?(memory)(?:,[^:\n]*)?|0:):(.*)$`)

// memoryParent returns the cgroup to make a memory cgroup in. A machine may have both versions; the memory controller
// is of one of them. In version 2 that is the nearest cgroup, from that of this process upwards, whose children have
// the controller: a cgroup has either processes or children with controllers.
func memoryParent() (*MemoryGroup, error) {
	mounts, err := Mounts()
	if err != nil {
		return nil, err
	}
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for _, own := range ownGroup.FindAllStringSubmatch(string(cgroups), -1) {
		for _, m := range mounts {
			if own[1] != "" && m.Type == "cgroup" && slices.Contains(strings.Split(m.SuperOptions, ","), "memory") {
				return &MemoryGroup{dir: filepath.Join(m.Target, own[2])}, nil
			}
			if own[1] != "" || m.Type != "cgroup2" {
				continue
			}
			for path := own[2]; ; path = filepath.Dir(path) {
				dir := filepath.Join(m.Target, path)
				controllers, err := os.ReadFile(filepath.Join(dir, controllersFile))
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					return nil, fmt.Errorf("find a memory cgroup: %w", err)
				}
				if slices.Contains(strings.Fields(string(controllers)), "memory") {
					return &MemoryGroup{dir, true}, nil
				}
				if dir == filepath.Clean(m.Target) {
					break
				}
			}
		}
	}
	return nil, ErrNoMemoryGroups
}

// Add moves a process into the group. What it has taken before stays counted elsewhere.
func (g *MemoryGroup) Add(pid int) error { return g.write("cgroup.procs", strconv.Itoa(pid)) }

// Limit sets the most bytes that the group may take; -1 is no limit.
func (g *MemoryGroup) Limit(bytes int64) error {
	switch limit := strconv.FormatInt(bytes, 10); {
	case !g.v2:
		return g.write("memory.limit_in_bytes", limit)
	case bytes < 0:
		return g.write("memory.max", "max")
	default:
		return g.write("memory.max", limit)
	}
}

// Pause has the processes that are in the group now wait if they need more than the limit, or see their system calls
// fail with ENOMEM, instead of being killed.
func (g *MemoryGroup) Pause() error {
	if !g.v2 {
		return g.write("memory.oom_control", "1")
	}
	pids, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(pids)) {
		// The least of all scores: never to be killed for memory. It takes CAP_SYS_RESOURCE.
		if err := os.WriteFile(filepath.Join("/proc", pid, "oom_score_adj"), []byte("-1000"), 0); err != nil {
			return fmt.Errorf("keep a process of a memory cgroup from being killed: %w", err)
		}
	}
	return nil
}

// Usage returns how many bytes are counted for the group.
func (g *MemoryGroup) Usage() (int64, error) {
	if g.v2 {
		return g.read("memory.current", "")
	}
	return g.read("memory.usage_in_bytes", "")
}

// Refusals returns how often the limit was met.
func (g *MemoryGroup) Refusals() (int64, error) {
	if g.v2 {
		return g.read("memory.events", "max ")
	}
	return g.read("memory.failcnt", "")
}

// Close removes the group, whose processes must have ended.
func (g *MemoryGroup) Close() error {
	// A process that has been reaped may be in it for a moment longer.
	return Poll(context.Background(), time.Minute, pollInterval, func() error { return os.Remove(g.dir) })
}

func (g *MemoryGroup) write(file, text string) error {
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0); err != nil {
		return fmt.Errorf("set %s of a memory cgroup to %s: %w", file, text, err)
	}
	return nil
}

// read returns the number after prefix in a line of a file.
func (g *MemoryGroup) read(file, prefix string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, prefix); ok {
			return strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s of a memory cgroup has no %q: %q", file, prefix, text)
}
