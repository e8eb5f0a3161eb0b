package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// newReader returns a watch that reads the value's file of a volume whenever that is switched, by
// its path as a container does. One goroutine calls seen with the path, the new content, and the
// time at which it had that. The caller closes the watch.
func newReader(seen func(path, content string, at time.Time)) (*harness.SwitchWatch, error) {
	return harness.WatchSwitches(func(dir string) error {
		path := dir + "/" + valueKey
		content, err := readSmall(path)
		at := time.Now()
		if err != nil {
			return fmt.Errorf("a reader saw: %w", err)
		}
		seen(path, content, at)
		return nil
	})
}

// readSmall returns the content of a file of a few bytes with as few calls as can be: what
// a reader of many volumes takes, it takes from what it times.
func readSmall(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err == nil && n == len(buf) {
		err = errors.New("more than was to be there")
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return string(buf[:n]), nil
}
