// Package clock owns the one clock that processes of different containers tell each other
// times by, and the proof that it is one. It must not know what is timed.
package clock

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Name names the clock that Now reads. Processes to which it has the same name read the
// very same clock: they run on one kernel since one boot of it, and in one time namespace.
func Name() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("name of the clock: %w", err)
	}
	namespace, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		return "", fmt.Errorf("name of the clock: %w", err)
	}
	return strings.TrimSpace(string(boot)) + " " + namespace, nil
}

// Now returns the time since the boot, by the kernel's monotonic clock. Nothing sets it, so
// the difference of two times is how long it took.
func Now() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
