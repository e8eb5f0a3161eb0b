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

// MemoryGroup is a memory cgroup of a test's own, of version 1 or 2, near the one that
// this process is in. It is for one goroutine at a time.
type MemoryGroup struct {
	dir   string
	files memoryFiles
}

// memoryFiles are the files of a group that differ between the versions of cgroups.
type memoryFiles struct {
	limit, usage string
	// unlimited is what limit is set to for no limit.
	unlimited string
	// pause keeps the group's processes from being killed if 1 is written to it; "" where
	// there is no such file.
	pause string
	// children gives children the memory controller; "" where they always have it.
	children string
	// refusals holds how often the limit was met: in the line of the name refusalsLine,
	// or as its only number.
	refusals, refusalsLine string
}

func memoryFilesV1() memoryFiles {
	return memoryFiles{
		limit:     "memory.limit_in_bytes",
		usage:     "memory.usage_in_bytes",
		unlimited: "-1",
		pause:     "memory.oom_control",
		refusals:  "memory.failcnt",
	}
}

func memoryFilesV2() memoryFiles {
	return memoryFiles{
		limit:        "memory.max",
		usage:        "memory.current",
		unlimited:    "max",
		children:     controllersFile,
		refusals:     "memory.events",
		refusalsLine: "max",
	}
}

// ErrNoMemoryGroups says that no cgroup here lets its children limit memory, whoever
// makes them.
var ErrNoMemoryGroups = errors.New("no cgroup with a memory controller for its children")

// NewMemoryGroup makes a group without a limit. The error matches ErrNoMemoryGroups
// where this process has no place for one. The caller must close it.
func NewMemoryGroup(name string) (*MemoryGroup, error) {
	mounts, err := Mounts()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	parent, files, err := memoryParent(mounts, string(own))
	if err != nil {
		return nil, err
	}
	// Programs in different sandboxes have the same numbers.
	dir, err := os.MkdirTemp(parent, name+"-")
	if err != nil {
		return nil, fmt.Errorf("make a memory cgroup: %w", err)
	}
	g := &MemoryGroup{dir: dir, files: files}
	return g, nil
}

// Child makes a group within this one, as a container's is in its pod's: what it takes counts
// for both. The caller must close it first. In version 2 this group can't have processes then.
func (g *MemoryGroup) Child(name string) (*MemoryGroup, error) {
	if g.files.children != "" {
		if err := g.write(g.files.children, "+memory"); err != nil {
			return nil, err
		}
	}
	child := &MemoryGroup{dir: filepath.Join(g.dir, name), files: g.files}
	if err := os.Mkdir(child.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a memory cgroup: %w", err)
	}
	return child, nil
}

// memoryParent returns the directory of the cgroup to make a memory cgroup in, for a
// process with these mounts and this /proc/PID/cgroup. A machine may have both versions;
// the memory controller is of one of them.
func memoryParent(mounts []Mount, cgroups string) (string, memoryFiles, error) {
	unified := ""
	for line := range strings.Lines(cgroups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			unified = parts[2]
		}
		if !slices.Contains(strings.Split(parts[1], ","), "memory") {
			continue
		}
		for _, m := range mounts {
			if m.Type == "cgroup" && slices.Contains(strings.Split(m.SuperOptions, ","), "memory") {
				return filepath.Join(m.Target, parts[2]), memoryFilesV1(), nil
			}
		}
	}
	for _, m := range mounts {
		if m.Type == "cgroup2" && unified != "" {
			parent, err := memoryParentV2(m.Target, unified)
			return parent, memoryFilesV2(), err
		}
	}
	return "", memoryFiles{}, ErrNoMemoryGroups
}

// controllersFile names the controllers that the children of a group of version 2 have.
const controllersFile = "cgroup.subtree_control"

// memoryParentV2 returns the nearest cgroup, from the one of this path upwards, whose
// children have the memory controller. It is rarely the first: in version 2, a cgroup has
// either processes or children with controllers.
func memoryParentV2(root, path string) (string, error) {
	for {
		dir := filepath.Join(root, path)
		controllers, err := os.ReadFile(filepath.Join(dir, controllersFile))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find a memory cgroup: %w", err)
		}
		if slices.Contains(strings.Fields(string(controllers)), "memory") {
			return dir, nil
		}
		if dir == filepath.Clean(root) {
			return "", fmt.Errorf("%w: no %s from that of this process up to %s has memory in it", ErrNoMemoryGroups, controllersFile, root)
		}
		path = filepath.Dir(path)
	}
}

// Add moves a process into the group. What it has taken before stays counted elsewhere.
func (g *MemoryGroup) Add(pid int) error { return g.write("cgroup.procs", strconv.Itoa(pid)) }

// Limit sets the most bytes that the group may take; -1 is no limit.
func (g *MemoryGroup) Limit(bytes int64) error {
	if bytes < 0 {
		return g.write(g.files.limit, g.files.unlimited)
	}
	return g.write(g.files.limit, strconv.FormatInt(bytes, 10))
}

// Pause has the processes that are in the group now wait if they need more than the
// limit, or see their system calls fail with ENOMEM, instead of being killed.
func (g *MemoryGroup) Pause() error {
	if g.files.pause != "" {
		return g.write(g.files.pause, "1")
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
func (g *MemoryGroup) Usage() (int64, error) { return g.read(g.files.usage, "") }

// Refusals returns how often the limit was met.
func (g *MemoryGroup) Refusals() (int64, error) {
	return g.read(g.files.refusals, g.files.refusalsLine)
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

// read returns the number in the line of a file that begins with name; a file of one
// number has no names.
func (g *MemoryGroup) read(file, name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 && (name == "" || fields[0] == name) {
			return strconv.ParseInt(fields[len(fields)-1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s of a memory cgroup has no %q: %q", file, name, text)
}
