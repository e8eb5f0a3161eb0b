package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var (
	errAlone = errors.New("--signal: this container sees its own processes only: set shareProcessNamespace: true in the pod's spec")
	errNone  = errors.New("no such process in this pod")
)

// process is a process to signal. Its handle stays valid even if another process gets the same number later.
type process struct {
	pid    int
	handle *os.Process
}

// sendSignal signals the processes and returns them.
func sendSignal(o *options) ([]process, error) {
	found, err := findProcesses(o.process)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: none is named %q", errNone, o.process)
	}
	for _, p := range found {
		switch err := p.handle.Signal(o.signal); {
		case errors.Is(err, syscall.EPERM):
			return nil, refusal(p.pid, o.process, os.Geteuid(), statusOfProcess(p.pid, "Uid"))
		case err != nil && !errors.Is(err, os.ErrProcessDone):
			return nil, fmt.Errorf("signal process %d (%s): %w", p.pid, o.process, err)
		}
	}
	return found, nil
}

// refusal says what this process lacks. A capability that is added to a container only works for user 0.
func refusal(pid int, name string, own int, owner string) error {
	if own == 0 {
		return fmt.Errorf("may not signal process %d (%s) of user %s: this container runs as user 0, but lacks the capability KILL: set securityContext.capabilities.add: [KILL]",
			pid, name, owner)
	}
	return fmt.Errorf("may not signal process %d (%s) of user %s: this container runs as user %d: set securityContext.runAsUser: %s, or runAsUser: 0 with capabilities.add: [KILL]",
		pid, name, owner, own, owner)
}

// waitForEnd waits until the processes have ended, for at most grace.
func waitForEnd(ctx context.Context, processes []process, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, p := range processes {
		for !p.hasEnded() {
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasEnded reports whether the process has ended. A zombie has ended too: only its parent has not noticed yet.
func (p process) hasEnded() bool {
	return errors.Is(p.handle.Signal(syscall.Signal(0)), os.ErrProcessDone) || statusOfProcess(p.pid, "State") == "Z"
}

// findProcesses returns this pod's processes with a name, without those whose parent has the name too.
func findProcesses(name string) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	named := map[int]process{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || pid == 1 { // 1 is the pause container, or the node's init
			continue
		}
		handle, err := os.FindProcess(pid) // get the handle first, so that what is read belongs to its process
		if err == nil && isNamed(pid, name) && isBeside(cgroupsOf("self"), cgroupsOf(entry.Name())) {
			named[pid] = process{pid, handle}
		}
	}
	var found []process
	for _, p := range named {
		parent, _ := strconv.Atoi(statusOfProcess(p.pid, "PPid"))
		if _, ok := named[parent]; !ok {
			found = append(found, p)
		}
	}
	return found, nil
}

// isNamed compares a name with the kernel's name of the process, which has at most 15 bytes, and with the command.
func isNamed(pid int, name string) bool {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return false
	}
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	first, _, _ := strings.Cut(string(command), "\x00")
	return strings.TrimSuffix(string(comm), "\n") == name[:min(len(name), 15)] || path.Base(first) == name
}

// cgroupsOf returns the paths of a process's cgroups by controllers. In version 2 there is one, for "".
func cgroupsOf(pid string) map[string]string {
	text, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return nil
	}
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 {
			all[parts[1]] = parts[2]
		}
	}
	return all
}

// isBeside reports whether another process is in a container of the same pod: its cgroups are the same or have the same parent. With
// hostPID, processes of other pods are visible too. In a cgroup namespace, this process's own cgroup is / and the one beside it /../name.
// Controllers that the runtime doesn't use for containers have equal paths.
func isBeside(own, other map[string]string) bool {
	for controllers, mine := range own {
		theirs, ok := other[controllers]
		parent := path.Dir(mine)
		if mine == "/" {
			parent = "/.."
		}
		switch {
		case !ok:
			return false
		case theirs == mine:
		case parent == "/", !strings.HasPrefix(theirs, parent+"/"), strings.HasPrefix(theirs+"/", "/../../"):
			return false
		}
	}
	return len(own) > 0
}

// statusOfProcess returns the first word of a field in /proc/PID/status, or "?".
func statusOfProcess(pid int, field string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return "?"
}
