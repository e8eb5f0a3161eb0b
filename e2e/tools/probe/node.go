package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mount is a line of the mount table of one mount namespace.
type mount struct {
	// Process is the command line's first word of one process in that namespace.
	Process string `json:"process"`
	PID     int    `json:"pid"`
	Line    string `json:"line"`
}

// mounts searches the mount table of every mount namespace that a process of proc
// is in for lines that contain text.
func mounts(proc, text string) ([]mount, error) {
	pids, err := processes(proc)
	if err != nil {
		return nil, err
	}
	found, seen := []mount{}, map[string]bool{}
	for _, pid := range pids {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		namespace, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
		if err != nil || seen[namespace] {
			// A process that has ended meanwhile, or whose table was read already.
			continue
		}
		table, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
		if err != nil {
			continue
		}
		seen[namespace] = true
		for line := range strings.Lines(string(table)) {
			if strings.Contains(line, text) {
				found = append(found, mount{Process: commandLine(proc, pid)[0], PID: pid, Line: strings.TrimSpace(line)})
			}
		}
	}
	return found, nil
}

func processes(proc string) ([]int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// commandLine returns the words of the process's command line; there is one, an empty one,
// for a kernel thread and for a process that has ended.
func commandLine(proc string, pid int) []string {
	line, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return []string{""}
	}
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}
