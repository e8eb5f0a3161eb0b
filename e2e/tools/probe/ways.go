package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// way is how to come to a directory.
type way struct {
	name string
	// enter returns a path of the directory, good until leave is called.
	enter func(dir string) (path string, leave func(), err error)
}

// ways returns the ways to a directory. They are for one thread, with a working
// directory of its own.
func (a *assault) ways(dir string) []way {
	ways := []way{
		{"path", func(dir string) (string, func(), error) { return dir, func() {}, nil }},
		{"/proc/self/root", below("/proc/self/root")},
		{"descriptor", byDescriptor},
		{"/proc/thread-self/cwd", byWorkingDirectory},
		{"link in the neighbour volume", a.byLink},
	}
	for _, pid := range others(dir) {
		ways = append(ways, way{"root of another process", below(fmt.Sprintf("/proc/%d/root", pid))})
	}
	return ways
}

// below returns the way through a process's root directory.
func below(root string) func(string) (string, func(), error) {
	return func(dir string) (string, func(), error) { return root + dir, func() {}, nil }
}

// others returns the processes that have the same directory at that path, but for this one.
func others(dir string) []int {
	var pids []int
	all, _ := processes("/proc") // without any there is no such way
	for _, pid := range all {
		if pid == os.Getpid() || len(pids) == 2 {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func byDescriptor(dir string) (string, func(), error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), func() { unix.Close(fd) }, nil
}

func byWorkingDirectory(dir string) (string, func(), error) {
	if err := unix.Chdir(dir); err != nil {
		return "", nil, err
	}
	return "/proc/thread-self/cwd", func() { _ = unix.Chdir("/") }, nil
}

func (a *assault) byLink(dir string) (string, func(), error) {
	link := filepath.Join(a.Scratch, "way")
	if err := os.Symlink(dir, link); err != nil {
		return "", nil, err
	}
	return link, func() { _ = os.Remove(link) }, nil
}
